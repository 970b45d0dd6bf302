//! Choices that were measured instead of taken from constants: how many warps share a tile of a product.

use super::Storage;
use serde::{Deserialize, Serialize};

/// Warps that may share a tile: the eight of a block, or a part of them.
pub const PARTS: [u32; 4] = [1, 2, 4, 8];

/// A choice for one shape.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// `linear`, or `experts` for both of their products.
    pub op: String,
    /// How the weights are stored: `bf16`, `int4`, `fp8`.
    pub storage: String,
    /// Outputs of a product; of experts, the intermediate size.
    pub n: u64,
    /// Contracted elements; of experts, the hidden size.
    pub k: u64,
    /// Token rows at which it was measured.
    pub rows: u64,
    /// Warps that share a tile; one of [`PARTS`].
    pub parts: u32,
}

/// Choices by shape. What none speaks of goes by the constants of the launches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    choices: Vec<Choice>,
    everywhere: Option<u32>,
    hopper: bool,
}

/// What a product is asked about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) op: &'static str,
    pub(super) storage: Storage,
    pub(super) n: u64,
    pub(super) k: u64,
    pub(super) rows: u64,
}

/// The word for a storage format in choices.
pub fn storage_word(storage: Storage) -> &'static str {
    match storage {
        Storage::Rows(_) => "bf16",
        Storage::Int4 { .. } => "int4",
        Storage::Fp8 { .. } => "fp8",
    }
}

impl Tuning {
    /// Choices that were measured; those with other than [`PARTS`] warps are left out.
    pub fn new(choices: Vec<Choice>) -> Self {
        Self { choices: choices.into_iter().filter(|c| PARTS.contains(&c.parts)).collect(), ..Self::default() }
    }
    /// The same everywhere, to measure what it brings.
    pub fn everywhere(parts: u32) -> Self {
        Self { everywhere: Some(parts), ..Self::default() }
    }
    /// The same for a GPU of Hopper's architecture, which has kernels of its own beside those that run everywhere.
    pub fn on_hopper(self, hopper: bool) -> Self {
        Self { hopper, ..self }
    }
    pub(super) fn is_hopper(&self) -> bool {
        self.hopper
    }
    /// How many shapes it speaks of.
    pub fn len(&self) -> usize {
        self.choices.len()
    }
    /// Whether it speaks of none.
    pub fn is_empty(&self) -> bool {
        self.choices.is_empty() && self.everywhere.is_none()
    }
    /// Warps that share a tile, where that was measured for this shape on no more than twice and no less than half of the rows.
    pub(super) fn parts(&self, asked: &Asked) -> Option<u64> {
        if let Some(parts) = self.everywhere {
            return Some(u64::from(parts));
        }
        let word = storage_word(asked.storage);
        let same = |c: &&Choice| c.op == asked.op && c.storage == word && (c.n, c.k) == (asked.n, asked.k);
        let near = |c: &&Choice| c.rows <= 2 * asked.rows && asked.rows <= 2 * c.rows;
        let nearest = self.choices.iter().filter(same).filter(near).min_by_key(|c| (c.rows.abs_diff(asked.rows), c.rows));
        nearest.map(|c| u64::from(c.parts))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Element;
    use super::*;

    #[test]
    fn the_nearest_measured_shape_decides_and_others_do_not() {
        let choice = |rows, parts| Choice { op: "linear".into(), storage: "bf16".into(), n: 64, k: 128, rows, parts };
        let tuning = Tuning::new(vec![choice(1, 8), choice(8, 2), choice(12, 4), choice(3, 5)]);
        assert_eq!(tuning.len(), 3);
        let asked = |rows, n| tuning.parts(&Asked { op: "linear", storage: Storage::Rows(Element::Bf16), n, k: 128, rows });
        assert_eq!((asked(1, 64), asked(2, 64), asked(9, 64), asked(11, 64)), (Some(8), Some(8), Some(2), Some(4)));
        assert_eq!((asked(3, 64), asked(25, 64), asked(8, 65)), (None, None, None));
        let experts = Asked { op: "experts", storage: Storage::Rows(Element::Bf16), n: 64, k: 128, rows: 8 };
        assert_eq!((tuning.parts(&experts), Tuning::everywhere(4).parts(&experts)), (None, Some(4)));
    }
}
