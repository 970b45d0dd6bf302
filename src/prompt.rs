//! Prompts as token ids.

use crate::error::{Failure, InputError};
use moetwin::kernels::splitmix::SplitMix64;
use moetwin::models::ModelSpec;
use moetwin::runtime::weights::{Checkpoint, StoredType};
use std::fs;
use std::path::Path;

/// Longest file of token ids: a million tokens take eight megabytes.
const MOST_BYTES: u64 = 64 << 20;
/// Most sequences of a batch.
const MOST_SEQUENCES: u64 = 65_536;
/// The tensor of token ids.
const TENSOR: &str = "input_ids";

/// Prompts from `input_ids` of a safetensors file, `[sequences, tokens]` or `[tokens]`.
pub(crate) fn from_file(flag: &'static str, path: &Path, spec: &ModelSpec) -> Result<Vec<Vec<i32>>, Failure> {
    let wrong = |message: String| Failure::from(InputError::new(flag, message).value(path.to_string_lossy()));
    let metadata = fs::metadata(path).map_err(|e| wrong(e.to_string()))?;
    if !metadata.is_file() || metadata.len() > MOST_BYTES {
        return Err(wrong(format!("is not a file of at most {} MiB", MOST_BYTES >> 20)));
    }
    let bytes = fs::read(path).map_err(|e| wrong(e.to_string()))?;
    let file = Checkpoint::from_bytes(&path.to_string_lossy(), bytes).map_err(|e| wrong(e.to_string()))?;
    let Some(tensor) = file.get(TENSOR) else {
        let names: Vec<&str> = file.tensors().map(|t| t.name).collect();
        return Err(wrong(format!("has no tensor {TENSOR}; it has {}", if names.is_empty() { "none".into() } else { names.join(", ") })));
    };
    let ids: Vec<i64> = match tensor.dtype {
        StoredType::I64 => integers::<8>(tensor.bytes),
        StoredType::I32 => integers::<4>(tensor.bytes),
        other => return Err(wrong(format!("{TENSOR} is {other}; I64 or I32 is read"))),
    };
    let (sequences, tokens) = match *tensor.shape {
        [tokens] => (1, tokens),
        [sequences, tokens] => (sequences, tokens),
        _ => return Err(wrong(format!("{TENSOR} has {} dimensions; [sequences, tokens] is read", tensor.shape.len()))),
    };
    if sequences == 0 || tokens == 0 || sequences > MOST_SEQUENCES {
        return Err(wrong(format!("{TENSOR} is [{sequences}, {tokens}]; 1 to {MOST_SEQUENCES} sequences of at least one token are read")));
    }
    ids.chunks(tokens as usize).map(|row| checked(flag, row.iter().copied(), spec)).collect()
}

/// Little-endian signed integers of `N` bytes.
fn integers<const N: usize>(bytes: &[u8]) -> Vec<i64> {
    let signed = |chunk: &[u8]| {
        let negative = chunk.last().is_some_and(|b| b & 0x80 != 0);
        let mut wide = [if negative { 0xff } else { 0 }; 8];
        wide[..N].copy_from_slice(chunk);
        i64::from_le_bytes(wide)
    };
    bytes.chunks_exact(N).map(signed).collect()
}

/// Ids that are tokens of the model.
pub(crate) fn checked(flag: &'static str, ids: impl Iterator<Item = i64>, spec: &ModelSpec) -> Result<Vec<i32>, Failure> {
    let token = |(position, id): (usize, i64)| {
        let inside = u64::try_from(id).is_ok_and(|id| id < spec.vocab);
        let token = i32::try_from(id).ok().filter(|_| inside);
        token.ok_or_else(|| {
            let message = format!("token {position} is {id}, and {} has tokens 0 to {}", spec.name, spec.vocab.saturating_sub(1));
            Failure::from(InputError::new(flag, message))
        })
    };
    let tokens: Vec<i32> = ids.enumerate().map(token).collect::<Result<_, _>>()?;
    if tokens.is_empty() { Err(InputError::new(flag, "a prompt needs at least one token").into()) } else { Ok(tokens) }
}

/// `count` prompts of `length` tokens, drawn by a seed.
pub(crate) fn drawn(count: u32, length: u32, spec: &ModelSpec, seed: u64) -> Vec<Vec<i32>> {
    let mut numbers = SplitMix64(seed);
    // Checked configurations keep the vocabulary far below i32's range.
    let mut next = || i32::try_from(numbers.below(spec.vocab)).unwrap_or(0);
    (0..count).map(|_| (0..length).map(|_| next()).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_both_widths() {
        assert_eq!(integers::<4>(&[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]), [1, -1]);
        assert_eq!(integers::<8>(&[2, 1, 0, 0, 0, 0, 0, 0]), [258]);
    }
}
