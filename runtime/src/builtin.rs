//! The model that ships with the program: a small mixture of experts with INT4 weights, trained on the works of Shakespeare.

use crate::text::{TextError, TextModel};
use crate::weights::{Checkpoint, CheckpointError, CheckpointWeights, Layers};
use moetwin_kernels::routing::RoutingHistogram;
use moetwin_models::ModelSpec;
use moetwin_models::config::{self, ConfigError};

/// Name of the model.
pub const NAME: &str = "shakespeare-moe-int4";
/// Text of its `config.json`.
pub const CONFIG: &str = include_str!("../../tests/fixtures/shakespeare-moe-int4/config.json");
const WEIGHTS: &[u8] = include_bytes!("../../tests/fixtures/shakespeare-moe-int4/model.safetensors");
const TOKENIZER: &[u8] = include_bytes!("../../tests/fixtures/shakespeare-moe-int4/tokenizer.json");

/// How often each expert was chosen for the prompts and the greedy text of the model's `expected.json`: `moetwin run
/// --record-routing` writes such files.
const ROUTING: &str = include_str!("../../tests/fixtures/shakespeare-moe-int4/routing.json");

/// What it is.
pub fn spec() -> Result<ModelSpec, ConfigError> {
    config::read(CONFIG, NAME)
}

/// Its weights; `spec` is [`spec`]'s, or with [`Layers::First`] the first layers of it.
pub fn weights(spec: &ModelSpec, layers: Layers) -> Result<CheckpointWeights, CheckpointError> {
    CheckpointWeights::new(Checkpoint::from_bytes(NAME, WEIGHTS)?, spec, layers)
}

/// Its tokenizer; `spec` is [`spec`]'s.
pub fn text(spec: &ModelSpec) -> Result<TextModel, TextError> {
    TextModel::from_bytes(&format!("{NAME}/tokenizer.json"), TOKENIZER, spec.vocab)
}

/// Which experts it chooses on text of its own: a real routing, neither uniform nor a law.
pub fn routing() -> RoutingHistogram {
    serde_json::from_str(ROUTING).expect("the histogram that ships is one")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_that_ships_is_whole() {
        let spec = spec().unwrap();
        assert_eq!(weights(&spec, Layers::All).unwrap().checkpoint().place(), NAME);
        let text = text(&spec).unwrap();
        let ids = text.encode("ROMEO:").unwrap();
        assert_eq!(text.decode(&ids).unwrap(), "ROMEO:");
        assert_eq!(crate::text::stop_tokens(CONFIG, None).unwrap(), [1]);
    }
}
