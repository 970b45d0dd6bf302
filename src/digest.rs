//! A stable fingerprint of the inputs that decide a result.

use serde::Serialize;
use std::io::{self, Write};

/// 128-bit FNV-1a over the compact JSON of `inputs`, as 32 hexadecimal digits. Field order is declaration order and nothing hashed
/// iterates in hash order, so equal inputs give equal digests on every platform. It tells runs apart; it does not resist an adversary.
pub(crate) fn digest(inputs: &impl Serialize) -> Result<String, serde_json::Error> {
    let mut hasher = Fnv(OFFSET);
    serde_json::to_writer(&mut hasher, inputs)?;
    Ok(format!("{:032x}", hasher.0))
}

/// Offset basis and prime of FNV-1a with 128 bits (draft-eastlake-fnv, section 5).
const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

struct Fnv(u128);

impl Write for Fnv {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(PRIME);
        }
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // draft-eastlake-fnv, section 6.3: FNV-1a 128 of "a".
        let mut hasher = Fnv(OFFSET);
        hasher.write_all(b"a").unwrap();
        assert_eq!(format!("{:032x}", hasher.0), "d228cb696f1a8caf78912b704e4a8964");
        assert_ne!(digest(&(1, 2)).unwrap(), digest(&(2, 1)).unwrap());
        assert_eq!(digest(&"x").unwrap(), digest(&"x").unwrap());
    }
}
