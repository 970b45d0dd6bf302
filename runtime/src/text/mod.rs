//! Text in and out: a model's tokenizer, text as it is generated, and the choice of the next token.

mod sample;
mod stop;
mod stream;
mod tokenizer;

pub use sample::{Sampler, SamplingError};
pub use stop::stop_tokens;
pub use stream::TextStream;
pub use tokenizer::{TOKENIZER_FILE, TextError, TextModel};

#[cfg(test)]
mod tests;
