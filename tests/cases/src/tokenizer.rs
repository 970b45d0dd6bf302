//! Tokenizer files.

use crate::check_reason;
use moetwin_runtime::text::TextModel;

/// Tokens of the model that the tokenizer is read for.
const VOCAB: u64 = 1024;

/// Any bytes as a `tokenizer.json`: rejected with a reason, or texts are cut into tokens of the model or refused with a reason, and tokens give
/// text or a reason. Nothing panics.
pub fn check_tokenizer(data: &[u8]) {
    let model = match TextModel::from_bytes("tokenizer.json", data, VOCAB) {
        Ok(model) => model,
        Err(e) => return check_reason(&e.to_string()),
    };
    for text in ["", "a", "ROMEO:\nWhat light", "\u{2603} \u{0301}\0"] {
        match model.encode(text) {
            Ok(ids) => assert!(ids.iter().all(|id| u64::from(*id) < VOCAB), "a token outside the vocabulary"),
            Err(e) => check_reason(&e.to_string()),
        }
    }
    for ids in [&[][..], &[0, 1, 2], &[1023, u32::MAX]] {
        if let Err(e) = model.decode(ids) {
            check_reason(&e.to_string());
        }
    }
}
