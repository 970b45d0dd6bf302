//! Parts of weights and results: as numbers, as device memory holds them, and as they travel between processes.

use super::gpu::Element;
use super::rank::PartOfResult;
use crate::wire::{Reader, Writer};
use half::bf16;
use moetwin_kernels::reference::{Array, Data};
use moetwin_models::RankId;
use moetwin_runtime::BufferId;
use std::collections::BTreeMap;

/// A weight as device memory holds it.
pub(super) fn to_bytes(array: &Array<f32>, element: Element) -> Vec<u8> {
    match (&array.data, element) {
        (Data::Real(v), Element::Bf16) => v.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        (Data::Real(v), _) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        (Data::Int(v), _) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

/// What device memory holds, as numbers.
pub(super) fn from_bytes(part: PartOfResult) -> Array<f32> {
    let four = |c: &[u8]| [c[0], c[1], c[2], c[3]];
    let data = match part.element {
        Element::Bf16 => Data::Real(part.bytes.chunks_exact(2).map(|c| bf16::from_le_bytes([c[0], c[1]]).to_f32()).collect()),
        Element::F32 => Data::Real(part.bytes.chunks_exact(4).map(|c| f32::from_le_bytes(four(c))).collect()),
        Element::I32 => Data::Int(part.bytes.chunks_exact(4).map(|c| i32::from_le_bytes(four(c))).collect()),
    };
    Array { sizes: part.sizes, data }
}

/// Results of this process's ranks, to be sent.
pub(super) fn encode(parts: &BTreeMap<(RankId, BufferId), PartOfResult>) -> Vec<u8> {
    let mut out = Writer::default();
    for ((rank, buffer), part) in parts {
        let element = match part.element {
            Element::Bf16 => 0,
            Element::F32 => 1,
            Element::I32 => 2,
        };
        out.number(u64::from(rank.0)).number(u64::from(buffer.0)).number(element).number(part.sizes.len() as u64);
        for n in &part.sizes {
            out.number(*n as u64);
        }
        out.bytes(&part.bytes);
    }
    out.done()
}

/// What [`encode`] wrote; nothing where the bytes are not such.
pub(super) fn decode(bytes: &[u8]) -> Option<BTreeMap<(RankId, BufferId), PartOfResult>> {
    let mut from = Reader::new(bytes);
    let mut parts = BTreeMap::new();
    while !from.is_empty() {
        let (rank, buffer) = (RankId(u32::try_from(from.number()?).ok()?), BufferId(u32::try_from(from.number()?).ok()?));
        let element = match from.number()? {
            0 => Element::Bf16,
            1 => Element::F32,
            2 => Element::I32,
            _ => return None,
        };
        let dimensions = from.number()?;
        let sizes: Option<Vec<usize>> = (0..dimensions).map(|_| usize::try_from(from.number()?).ok()).collect();
        let (sizes, bytes) = (sizes?, from.bytes()?.to_vec());
        let whole = sizes.iter().try_fold(element.bytes() as usize, |n, s| n.checked_mul(*s))?;
        if whole != bytes.len() {
            return None;
        }
        parts.insert((rank, buffer), PartOfResult { buffer, sizes, element, bytes });
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_survive_the_way_and_cut_ones_are_refused() {
        let part = |buffer, element, sizes: &[usize], bytes: usize| PartOfResult {
            buffer: BufferId(buffer),
            sizes: sizes.to_vec(),
            element,
            bytes: (0..bytes).map(|b| b as u8).collect(),
        };
        let list = [(0, part(3, Element::Bf16, &[2, 5], 20)), (7, part(1, Element::I32, &[4], 16)), (7, part(2, Element::F32, &[0, 9], 0))];
        let parts: BTreeMap<_, _> = list.into_iter().map(|(r, p)| ((RankId(r), p.buffer), p)).collect();
        let bytes = encode(&parts);
        let back = decode(&bytes).unwrap();
        assert_eq!(format!("{back:?}"), format!("{parts:?}"));
        for cut in 1..bytes.len() {
            assert!(decode(&bytes[..cut]).is_none_or(|p| p.len() < parts.len()), "{cut}");
        }
        assert!(decode(&[0xff; 64]).is_none());
    }
}
