//! Checkpoint headers.

use crate::check_reason;
use moetwin_runtime::weights::Checkpoint;

/// Any bytes as a safetensors file: rejected with a reason, or every tensor lies inside the file, is as long as its type and shape say, and is found
/// again by its name.
pub fn check_safetensors(data: &[u8]) {
    match Checkpoint::from_bytes("input", data.to_vec()) {
        Err(e) => check_reason(&e.to_string()),
        Ok(checkpoint) => {
            let mut total = 0;
            for tensor in checkpoint.tensors() {
                assert_eq!(tensor.dtype.bytes_of(tensor.shape), Some(tensor.bytes.len() as u64), "{}", tensor.name);
                let again = checkpoint.get(tensor.name).expect("listed tensors are found");
                assert_eq!((again.shape, again.bytes.as_ptr()), (tensor.shape, tensor.bytes.as_ptr()), "{}", tensor.name);
                total += tensor.bytes.len();
            }
            assert!(total <= data.len(), "{total} bytes of tensors in a file of {}", data.len());
        }
    }
}
