//! Element types as safetensors headers spell them.

/// Element type of a stored tensor.
///
/// The list is that of the safetensors format, <https://github.com/huggingface/safetensors> (`Dtype`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the format's own")]
pub enum StoredType {
    Bool,
    F4,
    F6E2M3,
    F6E3M2,
    U8,
    I8,
    F8E5M2,
    F8E4M3,
    F8E8M0,
    F8E4M3Fnuz,
    F8E5M2Fnuz,
    I16,
    U16,
    F16,
    Bf16,
    I32,
    U32,
    F32,
    C64,
    F64,
    I64,
    U64,
}

impl StoredType {
    /// Every type with its name in headers and its bits an element.
    const TABLE: [(StoredType, &'static str, u64); 22] = [
        (StoredType::Bool, "BOOL", 8),
        (StoredType::F4, "F4", 4),
        (StoredType::F6E2M3, "F6_E2M3", 6),
        (StoredType::F6E3M2, "F6_E3M2", 6),
        (StoredType::U8, "U8", 8),
        (StoredType::I8, "I8", 8),
        (StoredType::F8E5M2, "F8_E5M2", 8),
        (StoredType::F8E4M3, "F8_E4M3", 8),
        (StoredType::F8E8M0, "F8_E8M0", 8),
        (StoredType::F8E4M3Fnuz, "F8_E4M3FNUZ", 8),
        (StoredType::F8E5M2Fnuz, "F8_E5M2FNUZ", 8),
        (StoredType::I16, "I16", 16),
        (StoredType::U16, "U16", 16),
        (StoredType::F16, "F16", 16),
        (StoredType::Bf16, "BF16", 16),
        (StoredType::I32, "I32", 32),
        (StoredType::U32, "U32", 32),
        (StoredType::F32, "F32", 32),
        (StoredType::C64, "C64", 64),
        (StoredType::F64, "F64", 64),
        (StoredType::I64, "I64", 64),
        (StoredType::U64, "U64", 64),
    ];

    /// The type of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::TABLE.iter().find(|(_, n, _)| *n == name).map(|(t, _, _)| *t)
    }
    /// Name as in headers.
    pub fn name(self) -> &'static str {
        Self::TABLE[self as usize].1
    }
    /// Bits of one element.
    pub fn bits(self) -> u64 {
        Self::TABLE[self as usize].2
    }
    /// Bytes of `shape` elements, `None` where that overflows or is not a whole number of bytes.
    pub fn bytes_of(self, shape: &[u64]) -> Option<u64> {
        let elements = shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d))?;
        let bits = elements.checked_mul(self.bits())?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }
}

impl std::fmt::Display for StoredType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::StoredType;

    #[test]
    fn the_table_is_in_declaration_order_and_agrees_with_the_format() {
        for (i, (t, name, bits)) in StoredType::TABLE.into_iter().enumerate() {
            assert_eq!(t as usize, i);
            assert_eq!((t.name(), t.bits()), (name, bits));
            let theirs: safetensors::Dtype = serde_json::from_str(&format!("\"{name}\"")).unwrap();
            assert_eq!(theirs.bitsize() as u64, bits);
            assert_eq!(StoredType::parse(name), Some(t));
        }
        assert_eq!(StoredType::parse("bf16"), None);
    }

    #[test]
    fn sizes_that_overflow_or_split_a_byte_are_refused() {
        assert_eq!(StoredType::Bf16.bytes_of(&[3, 5]), Some(30));
        assert_eq!(StoredType::F4.bytes_of(&[3]), None);
        assert_eq!(StoredType::F4.bytes_of(&[4]), Some(2));
        assert_eq!(StoredType::U8.bytes_of(&[u64::MAX, 2]), None);
        assert_eq!(StoredType::F64.bytes_of(&[u64::MAX / 4]), None);
        assert_eq!(StoredType::F32.bytes_of(&[]), Some(4));
    }
}
