//! The tokens that end a text.

use super::tokenizer::TextError;
use serde::Deserialize;

#[derive(Deserialize)]
struct Stops {
    eos_token_id: Option<OneOrMore>,
    text_config: Option<Box<Stops>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(u32),
    More(Vec<u32>),
}

impl Stops {
    fn ids(self) -> Option<Vec<u32>> {
        match self.eos_token_id {
            Some(OneOrMore::One(id)) => Some(vec![id]),
            Some(OneOrMore::More(ids)) => Some(ids),
            None => self.text_config.and_then(|inner| inner.ids()),
        }
    }
}

/// The `eos_token_id` of a model: that of its `generation_config.json` where it has one, else that of its `config.json` (or of the decoder
/// nested in it). None where neither says.
///
/// Errors name the file that is no JSON or has something else than token ids there.
pub fn stop_tokens(config: &str, generation_config: Option<&str>) -> Result<Vec<u32>, TextError> {
    for (file, text) in [("generation_config.json", generation_config), ("config.json", Some(config))] {
        let Some(text) = text else { continue };
        let stops: Stops =
            serde_json::from_str(text).map_err(|e| TextError::StopTokens { file: file.to_string(), reason: e.to_string() })?;
        if let Some(ids) = stops.ids() {
            return Ok(ids);
        }
    }
    Ok(Vec::new())
}
