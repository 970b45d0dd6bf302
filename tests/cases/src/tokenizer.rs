//! Tokenizer files.

use crate::check_reason;
use moetwin_runtime::text::TextModel;

/// Any bytes as a `tokenizer.json`: rejected with a reason, or text becomes tokens of the vocabulary or is rejected with a reason, and so do
/// tokens become text, the same at once and one by one.
pub fn check_tokenizer(data: &[u8]) {
    const VOCAB: u64 = 1024;
    let text = match TextModel::from_bytes("input", data, VOCAB) {
        Err(e) => return check_reason(&e.to_string()),
        Ok(text) => text,
    };
    for input in ["", "To be, or not", " \u{2603}\0\r\n\u{FFFD}e\u{301}", "<|begin|>"] {
        match text.encode(input) {
            Err(e) => check_reason(&e.to_string()),
            Ok(ids) => assert!(ids.iter().all(|id| u64::from(*id) < VOCAB), "{ids:?}"),
        }
    }
    for ids in [&[][..], &[0, 1, 2, 3], &[1023, 5, 200, u32::MAX, 7, 7]] {
        if let Err(e) = text.decode(ids) {
            check_reason(&e.to_string());
        }
        let mut stream = text.stream();
        for &id in ids {
            if let Err(e) = stream.push(id) {
                check_reason(&e.to_string());
            }
        }
        if let Err(e) = stream.finish() {
            check_reason(&e.to_string());
        }
    }
}
