//! The size of each record, asserted, and which of them the agent may put into a map.

/// Asserts the sizes of records, and lets the agent put them into maps. A record with addresses has two sizes: with those of IPv4, and of IPv6.
macro_rules! sizes {
    ($($record:ident $(<$n:ident>)? = $four:literal $(| $six:literal)?),* $(,)?) => {
        $(sizes!(@ $record $(<$n>)? = $four $(| $six)?);)*
    };
    (@ $record:ident = $size:literal) => {
        const _: () = assert!(size_of::<$record>() == $size && align_of::<$record>() <= 8);
        // SAFETY: repr(C), only plain numbers, no implicit padding (the size is the sum of the fields).
        #[cfg(feature = "user")]
        unsafe impl aya::Pod for $record {}
    };
    (@ $record:ident<$n:ident> = $four:literal | $six:literal) => {
        const _: () = assert!(size_of::<$record<4>>() == $four && align_of::<$record<4>>() <= 8);
        const _: () = assert!(size_of::<$record<16>>() == $six && align_of::<$record<16>>() <= 8);
        // SAFETY: as above; addresses have 4 or 16 bytes.
        #[cfg(feature = "user")]
        unsafe impl<const $n: usize> aya::Pod for $record<$n> {}
    };
}

pub(crate) use sizes;
