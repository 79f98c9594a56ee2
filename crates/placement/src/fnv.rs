//! FNV-1a of 64 bits (<http://www.isthe.com/chongo/tech/comp/fnv/>): the same on every machine and in every release,
//! which the hashers of `std` do not promise. It tells accidents apart and is no protection.

/// The hash of no bytes.
pub const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

/// The hash of these bytes.
///
/// # Examples
///
/// ```
/// use placement::fnv::{EMPTY, extended, hash};
///
/// assert_eq!(hash(b"foobar"), 0x8594_4171_f739_67e8);
/// assert_eq!(extended(hash(b"foo"), b"bar"), hash(b"foobar"));
/// assert_eq!(hash(b""), EMPTY);
/// ```
#[must_use]
pub fn hash(bytes: &[u8]) -> u64 {
    extended(EMPTY, bytes)
}

/// The hash of what was hashed before and these bytes after it.
#[must_use]
pub fn extended(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
