//! Indexes of sharded checkpoints.

use crate::check_reason;
use moetwin_runtime::weights::parse_index;
use serde_json::Value;

/// Any bytes as a `model.safetensors.index.json`: rejected with a reason, or the entries are those that a JSON parser finds, of which the
/// last one of a name counts.
pub fn check_index(data: &[u8]) {
    let mut entries = Vec::new();
    match parse_index(data, &mut |tensor, file| entries.push((tensor.to_owned(), file.to_owned()))) {
        Err(reason) => check_reason(&reason),
        Ok(()) => {
            let json: Value = serde_json::from_slice(data).expect("an accepted index is JSON");
            let map = json["weight_map"].as_object().expect("an accepted index has a weight_map");
            for (tensor, file) in map {
                let last = entries.iter().rfind(|(t, _)| t == tensor).expect("every member is an entry");
                assert_eq!(Some(last.1.as_str()), file.as_str(), "{tensor}");
            }
            let listed: usize = entries.iter().map(|(t, f)| t.len() + f.len()).sum();
            assert!(listed <= data.len(), "{listed} bytes of names in an index of {}", data.len());
        }
    }
}
