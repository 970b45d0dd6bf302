//! What `moetwin run` computes on: the model's layers, prompts and weights.

use super::flags::drawn_prompts;
use super::{DEFAULT_MAX_TOKENS, DEFAULT_PROMPT, DRAWN_PROMPT, RunArgs};
use crate::error::{Failure, InputError};
use crate::prompt;
use crate::resolve::{self, Place};
use crate::scenario::routing;
use moetwin::models::ModelSpec;
use moetwin::runtime::builtin;
use moetwin::runtime::text::{TextError, TextModel, stop_tokens};
use moetwin::runtime::weights::{CheckpointWeights, Layers, SyntheticWeights, UnroutableModel, WeightSource, first_layers};
use std::path::Path;

/// The model with its first layers only.
pub(in crate::commands) fn cut(spec: ModelSpec, layers: Option<u32>) -> Result<ModelSpec, Failure> {
    match layers {
        None => Ok(spec),
        Some(n) if n as usize > spec.layers.len() => {
            let message = format!("{} has {} layers", spec.name, spec.layers.len());
            Err(InputError::new("--layers", message).value(n.to_string()).accepted([format!("1 to {}", spec.layers.len())]).into())
        }
        Some(n) => Ok(first_layers(&spec, n as usize)),
    }
}

/// A prompt that is text.
pub(super) struct TextPrompt<'a> {
    pub(super) prompt: &'a str,
    pub(super) model: TextModel,
    /// Tokens that end the text.
    pub(super) stop: Vec<u32>,
}

/// The prompt as text; where no prompt of any kind was given, one that suits the shipped model.
pub(super) fn text_prompt(args: &RunArgs) -> Option<&str> {
    let shipped = args.deployment.model.is_none() && !args.synthetic && args.input_ids.is_none() && args.prompt_ids.is_none();
    args.prompt.as_deref().or_else(|| shipped.then_some(DEFAULT_PROMPT))
}

pub(super) fn open_text<'a>(prompt: &'a str, place: &Place, spec: &ModelSpec) -> Result<TextPrompt<'a>, Failure> {
    let wrong = |e: TextError| Failure::from(InputError::new("--prompt", e.to_string()));
    // Read again: what ends a text is no part of the model's graph.
    let file = |folder: &Path, name: &str| {
        let path = folder.join(name);
        path.exists().then(|| resolve::read_text("--model", &folder.to_string_lossy(), &path)).transpose()
    };
    let (model, stop) = match place {
        Place::Nowhere => return Err(InputError::new("--prompt", "needs a --model with a tokenizer.json in its folder").into()),
        Place::Shipped => (builtin::text(spec).map_err(wrong)?, stop_tokens(builtin::CONFIG, None).map_err(wrong)?),
        Place::Folder(folder) => {
            let (config, generation) = (file(folder, "config.json")?.unwrap_or_default(), file(folder, "generation_config.json")?);
            (TextModel::open(folder, spec.vocab).map_err(wrong)?, stop_tokens(&config, generation.as_deref()).map_err(wrong)?)
        }
    };
    Ok(TextPrompt { prompt, model, stop })
}

pub(super) fn prompts(args: &RunArgs, spec: &ModelSpec, text: Option<&TextPrompt<'_>>) -> Result<Vec<Vec<i32>>, Failure> {
    let prompts = match (&args.input_ids, &args.prompt_ids, text) {
        (Some(path), ..) => prompt::from_file("--input-ids", path, spec)?,
        (_, Some(ids), _) => vec![prompt::checked("--prompt-ids", ids.iter().map(|id| i64::from(*id)), spec)?],
        (_, _, Some(text)) => {
            let ids = text.model.encode(text.prompt).map_err(|e| InputError::new("--prompt", e.to_string()))?;
            vec![prompt::checked("--prompt", ids.iter().map(|id| i64::from(*id)), spec)?]
        }
        _ if drawn_prompts(args) => {
            let length = args.deployment.context.unwrap_or(DRAWN_PROMPT);
            prompt::drawn(args.deployment.batch.unwrap_or(1), length.max(1), spec, args.deployment.seed)
        }
        _ => {
            let accepted = ["--input-ids FILE", "--prompt-ids ID,ID,..", "--prompt TEXT"];
            return Err(InputError::new("prompt", "none was given").accepted(accepted).into());
        }
    };
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0) as u64;
    let last = longest + u64::from(args.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS));
    if last > spec.max_positions {
        let message = format!("{longest} tokens of prompt and the new ones reach position {last}; the model allows {}", spec.max_positions);
        return Err(InputError::new("--max-tokens", message).into());
    }
    Ok(prompts)
}

/// Weights drawn by the seed, under which tokens choose experts as `--routing` says.
pub(super) fn made_up(args: &RunArgs, spec: &ModelSpec) -> Result<SyntheticWeights, Failure> {
    let weights = SyntheticWeights::new(spec, args.deployment.seed);
    let Some(asked) = &args.deployment.routing else { return Ok(weights) };
    let distribution = routing(Some(asked), spec)?;
    let refused = |e: UnroutableModel| InputError::new("--routing", e.to_string()).accepted(["uniform", "no --routing"]).into();
    weights.with_routing(spec, &distribution).map_err(refused)
}

pub(super) fn weights(args: &RunArgs, name: &str, place: &Place, spec: &ModelSpec) -> Result<Box<dyn WeightSource>, Failure> {
    if args.synthetic {
        return Ok(Box::new(made_up(args, spec)?));
    }
    let layers = if args.layers.is_some() { Layers::First } else { Layers::All };
    let opened = match place {
        Place::Folder(folder) => CheckpointWeights::open(folder, spec, layers),
        Place::Shipped => builtin::weights(spec, layers),
        Place::Nowhere => {
            let message = "has no weights here: it is a configuration only";
            let accepted = ["a folder with weights", "any model with --synthetic"];
            return Err(InputError::new("--model", message).value(name).accepted(accepted).into());
        }
    };
    Ok(Box::new(opened.map_err(|e| InputError::new("--model", e.to_string()).value(name))?))
}
