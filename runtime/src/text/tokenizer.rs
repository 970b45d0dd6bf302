//! The tokenizer of a model: `tokenizer.json`, read by the `tokenizers` crate.

use super::stream::TextStream;
use std::path::Path;
use tokenizers::Tokenizer;

/// File of a model's folder that holds its tokenizer.
pub const TOKENIZER_FILE: &str = "tokenizer.json";
/// Longest tokenizer file. The largest published ones (vocabularies of 260,000) have about 35 MB.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Turns text into token ids and back.
#[derive(Clone, Debug)]
pub struct TextModel {
    tokenizer: Tokenizer,
    vocab: u64,
}

/// Why a tokenizer cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The file cannot be read.
    #[error("{file}: {reason}")]
    Unreadable {
        /// The file.
        file: String,
        /// Why.
        reason: String,
    },
    /// The file is no tokenizer.
    #[error("{file}: not a tokenizer.json: {reason}")]
    Malformed {
        /// The file.
        file: String,
        /// What was found.
        reason: String,
    },
    /// A text that the tokenizer cannot cut in tokens.
    #[error("the tokenizer cannot encode the text: {reason}")]
    Encode {
        /// Why.
        reason: String,
    },
    /// Token ids that the tokenizer cannot turn into text.
    #[error("the tokenizer cannot decode the tokens: {reason}")]
    Decode {
        /// Why.
        reason: String,
    },
    /// A configuration whose `eos_token_id` is no token id.
    #[error("{file}: eos_token_id must be a token id or a list of them: {reason}")]
    StopTokens {
        /// The file.
        file: String,
        /// What was found.
        reason: String,
    },
    /// The tokenizer belongs to another model.
    #[error("the tokenizer gives token {id}, the model's vocabulary ends at {vocab}")]
    OutsideVocabulary {
        /// The token.
        id: u32,
        /// Tokens of the model.
        vocab: u64,
    },
}

/// What is said of a tokenizer that was read and cannot be used.
const BROKEN: &str = "its parts contradict each other";

/// What `f` gives, `None` where it panics. The library panics on some files that are JSON and no tokenizer; what a user hands over must
/// neither end the process nor print a backtrace of the library's.
fn shielded<T>(f: impl FnOnce() -> T) -> Option<T> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
    std::panic::set_hook(hook);
    result.ok()
}

impl TextModel {
    /// Reads [`TOKENIZER_FILE`] of a model's folder; `vocab` is the model's number of tokens.
    pub fn open(dir: &Path, vocab: u64) -> Result<Self, TextError> {
        let path = dir.join(TOKENIZER_FILE);
        let file = path.display().to_string();
        let unreadable = |reason: String| TextError::Unreadable { file: file.clone(), reason };
        let size = std::fs::metadata(&path).map_err(|e| unreadable(e.to_string()))?.len();
        if size > MAX_FILE_BYTES {
            return Err(unreadable(format!("has {size} bytes, more than the {MAX_FILE_BYTES} that a tokenizer may have")));
        }
        let json = std::fs::read(&path).map_err(|e| unreadable(e.to_string()))?;
        Self::from_bytes(&file, &json, vocab)
    }
    /// The tokenizer of a file's contents; `file` names it in errors.
    pub fn from_bytes(file: &str, json: &[u8], vocab: u64) -> Result<Self, TextError> {
        let malformed = |reason: String| TextError::Malformed { file: file.to_string(), reason };
        serde_json::from_slice::<serde_json::Value>(json).map_err(|e| malformed(e.to_string()))?;
        let read = shielded(|| Tokenizer::from_bytes(json));
        let read = read.ok_or_else(|| malformed("is JSON, but not what a tokenizer is described by".to_owned()))?;
        let mut tokenizer = read.map_err(|e| malformed(e.to_string()))?;
        // What a file may ask for training batches would cut or pad a prompt.
        tokenizer.with_truncation(None).map_err(|e| malformed(e.to_string()))?;
        tokenizer.with_padding(None);
        Ok(Self { tokenizer, vocab })
    }
    /// The tokens of a text, with those that the tokenizer puts around every text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let encode = |reason: String| TextError::Encode { reason };
        let encoding = shielded(|| self.tokenizer.encode(text, true)).ok_or_else(|| encode(BROKEN.into()))?;
        let encoding = encoding.map_err(|e| encode(e.to_string()))?;
        let ids = encoding.get_ids().to_vec();
        match ids.iter().find(|id| u64::from(**id) >= self.vocab) {
            Some(&id) => Err(TextError::OutsideVocabulary { id, vocab: self.vocab }),
            None => Ok(ids),
        }
    }
    /// The text of tokens; special ones and ids without a token have none.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TextError> {
        let decode = |reason: String| TextError::Decode { reason };
        shielded(|| self.tokenizer.decode(ids, true)).ok_or_else(|| decode(BROKEN.into()))?.map_err(|e| decode(e.to_string()))
    }
    /// Text of tokens that come one by one.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream::new(self)
    }
}
