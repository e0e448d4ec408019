//! Copies of records word by word.
//!
//! For a copy of a record with addresses of sixteen bytes the compiler calls a function that goes byte by byte, on every packet; and
//! the verifier walks each round of its loop. A word at a time it is a dozen instructions.

/// Copies a record of whole words.
#[inline(always)]
pub fn copy<T: Copy>(from: &T, into: &mut T) {
    const { assert!(size_of::<T>().is_multiple_of(4) && align_of::<T>() >= 4) };
    let (from, into) = (core::ptr::from_ref(from).cast::<u32>(), core::ptr::from_mut(into).cast::<u32>());
    let mut i = 0;
    while i < size_of::<T>() / 4 {
        // SAFETY: within both records, which are aligned to words and made of plain numbers. Volatile, or the compiler would make
        // the loop the call that it stands for.
        unsafe { into.add(i).write_volatile(from.add(i).read_volatile()) };
        i += 1;
    }
}

/// Copies an element of a map whose first word is its tag. `false`: another key has taken the element meanwhile, and the copy is of both. An
/// element writes its tag before the rest.
#[inline(always)]
#[must_use]
pub fn copy_tagged<T: Copy>(from: &T, into: &mut T, tag: impl FnOnce() -> u32) -> bool {
    copy(from, into);
    let tag = tag();
    let (before, after) = (core::ptr::from_mut(into).cast::<u32>(), core::ptr::from_ref(from).cast::<u32>());
    // SAFETY: the first words of both records, which `copy` has found to be aligned.
    unsafe { before.read() == tag && after.read_volatile() == tag }
}

/// Makes a record of whole words zero.
#[inline(always)]
pub fn clear<T: Copy>(record: &mut T) {
    const { assert!(size_of::<T>().is_multiple_of(4) && align_of::<T>() >= 4) };
    let record = core::ptr::from_mut(record).cast::<u32>();
    let mut i = 0;
    while i < size_of::<T>() / 4 {
        // SAFETY: as for `copy`; zero is a valid value of each number.
        unsafe { record.add(i).write_volatile(0) };
        i += 1;
    }
}

/// Four bytes of an address of a record, as they stand in memory; 0 beyond its end.
#[inline(always)]
#[allow(clippy::cast_ptr_alignment, reason = "addresses of records stand at a word's boundary")]
pub const fn word<const N: usize>(address: &[u8; N], at: usize) -> u32 {
    if at + 4 > N {
        return 0;
    }
    // SAFETY: within the address, which stands at a word's boundary.
    unsafe { address.as_ptr().add(at).cast::<u32>().read() }
}

/// Copies an address from one record to another: in each it stands at a word's boundary.
#[inline(always)]
#[allow(clippy::cast_ptr_alignment, reason = "addresses of records stand at a word's boundary")]
pub fn address<const N: usize>(from: &[u8; N], into: &mut [u8; N]) {
    let (from, into) = (from.as_ptr().cast::<u32>(), into.as_mut_ptr().cast::<u32>());
    debug_assert!(from.is_aligned() && into.is_aligned(), "an address of a record");
    let mut i = 0;
    while i < N / 4 {
        // SAFETY: within both, and aligned as said.
        unsafe { into.add(i).write_volatile(from.add(i).read_volatile()) };
        i += 1;
    }
}

/// Makes an address of a record zero.
#[inline(always)]
#[allow(clippy::cast_ptr_alignment, reason = "addresses of records stand at a word's boundary")]
pub fn clear_address<const N: usize>(address: &mut [u8; N]) {
    let address = address.as_mut_ptr().cast::<u32>();
    debug_assert!(address.is_aligned(), "an address of a record");
    let mut i = 0;
    while i < N / 4 {
        // SAFETY: within the address, and aligned as said.
        unsafe { address.add(i).write_volatile(0) };
        i += 1;
    }
}

/// Whether two addresses are the same: compared by words, where the compiler would go byte by byte.
#[inline(always)]
#[must_use]
pub fn same<const N: usize>(a: &[u8; N], b: &[u8; N]) -> bool {
    let word = |bytes: &[u8; N], i: usize| u32::from_ne_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
    let mut i = 0;
    while i + 4 <= N {
        if word(a, i) != word(b, i) {
            return false;
        }
        i += 4;
    }
    true
}
