//! The size of each record, asserted, and which of them the agent may put into a map.

/// Asserts the sizes of records, and lets the agent put them into maps.
macro_rules! sizes {
    ($($record:ty = $size:literal),* $(,)?) => {
        $(
            const _: () = assert!(size_of::<$record>() == $size && align_of::<$record>() <= 8);
            // SAFETY: repr(C), only plain numbers, no implicit padding (the size is the sum of the fields).
            #[cfg(feature = "user")]
            unsafe impl aya::Pod for $record {}
        )*
    };
}

pub(crate) use sizes;
