//! Launch commands as people paste them.

mod compose;
mod container;
mod image;
mod nearest;
mod shell;
mod substitution;
mod words;

pub use image::{Image, image};
pub use nearest::{distance, nearest};
pub(crate) use substitution::settle;
pub use words::{Unclosed, Word, split};

use crate::flags::{self, Flag, Value};
use crate::question::Engine;
use crate::version::Version;
use std::collections::BTreeMap;
use std::ops::Range;

/// A flag of the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// Canonical name, or what was written where no table knows it.
    pub name: String,
    /// As written, without a value.
    pub written: String,
    /// Its value; several words of a list are joined by a space.
    pub value: Option<String>,
    /// Where flag and value stand in the paste.
    pub span: Range<usize>,
    /// Whether the tables know it, in whatever version.
    pub known: bool,
}

/// A word that belongs to no flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// The word.
    pub text: String,
    /// Where it stands in the paste.
    pub span: Range<usize>,
    /// The switch in front of it on the same line, as written: people give switches values.
    pub behind: Option<String>,
    /// It begins a line that no backslash joins to the one before.
    pub on_its_own_line: bool,
}

/// A launch command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// The engine that the command starts, where it says so.
    pub engine: Option<Engine>,
    /// The tag of a container image of the engine.
    pub image_tag: Option<String>,
    /// GPUs that the container is given, where fewer than all.
    pub gpus: Option<u32>,
    /// Variables set in front of the command or for its container.
    pub env: BTreeMap<String, String>,
    /// The model: `--model`, `--model-path`, or vLLM's positional.
    pub model: Option<String>,
    /// Flags in order.
    pub given: Vec<Given>,
    /// Words such as `<MTP flags>` or `$TP` that stand for something.
    pub placeholders: Vec<String>,
    /// Words that belong to no flag, and whether each stands behind a switch on the same line.
    pub stray: Vec<Stray>,
}

/// Why a command cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// A quote is never closed.
    #[error("the quote {mark} at byte {at} of the command is not closed: what follows it is one word up to the end")]
    Unclosed {
        /// The quote.
        mark: char,
        /// Where, in bytes.
        at: usize,
    },
    /// Nothing in it starts an engine.
    #[error(
        "no engine is started in this command (accepted: python -m sglang.launch_server .., sglang serve .., vllm serve .., \
         python -m vllm.entrypoints.openai.api_server .., a docker run of one of their images)"
    )]
    NoEngine,
    /// The value of a flag is what another command prints.
    #[error("the value of {flag} is what {text} prints, which is not known here: {instead}")]
    Printed {
        /// The flag as written.
        flag: String,
        /// The substitution.
        text: String,
        /// What would be right.
        instead: String,
    },
    /// A loop that starts the engine several times.
    #[error(
        "the command is a loop over several launches, and one is answered at a time: give what stands between do and done, with one value in the place of ${0}"
    )]
    Loop(String),
    /// More words than any honest command has.
    #[error("the command has {0} words; at most 4096 are read")]
    TooLong(usize),
}

/// Which engine a command starts, or none.
pub fn engine_of(text: &str) -> Option<Engine> {
    let words = shell::words(text).ok()?;
    find_start(&words).map(|start| start.engine)
}

/// Whether every quote is closed: without that no engine is found, and the quote is what is wrong.
///
/// # Errors
/// [`CommandError::Unclosed`].
pub fn closed(text: &str) -> Result<(), CommandError> {
    shell::words(text).map(|_| ()).map_err(|e| CommandError::Unclosed { mark: e.mark, at: e.at })
}

/// Reads a command: a shell's, or one inside a Compose file or a pod manifest. `version` decides which abbreviations are unambiguous.
///
/// # Errors
/// See [`CommandError`].
pub fn parse(text: &str, version: &Version) -> Result<Command, CommandError> {
    let words = shell::words(text).map_err(|e| CommandError::Unclosed { mark: e.mark, at: e.at })?;
    if words.len() > 4096 {
        return Err(CommandError::TooLong(words.len()));
    }
    let start = find_start(&words).ok_or(CommandError::NoEngine)?;
    let front = &words[..start.front];
    let looped = shell::loop_around(front);
    if let Some(name) = looped.as_ref().and_then(|l| l.variable.clone()) {
        return Err(CommandError::Loop(name));
    }
    let mut command = Command { engine: Some(start.engine), image_tag: start.tag, gpus: container::gpus(front), ..Command::default() };
    variables(front, &mut command.env);
    let ends = |word: &Word| !word.quoted && (ends_command(&word.text) || looped.is_some() && word.text == "done");
    let end = words[start.arguments..].iter().position(ends).map_or(words.len(), |n| start.arguments + n);
    let words: Vec<Word> = words[start.arguments..end].iter().map(|word| shell::expanded(word, &command.env)).collect();
    Arguments { text, words: &words, at: 0, engine: start.engine, version, command: &mut command }.read();
    Ok(command)
}

/// Whether a value stands for something that the command does not say: `<n>`, `$TP`, `{{ .Values.tp }}`.
pub fn is_placeholder(value: &str) -> bool {
    value.starts_with('<') && value.ends_with('>')
        || value.starts_with("{{")
        || value.contains("${")
        || value.starts_with('$')
        || substitution::is_one(value)
}

impl Command {
    /// The last value given for a flag: as in argparse, the last one counts.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.given.iter().rev().find(|g| g.name == name).map(|g| g.value.as_deref().unwrap_or("true"))
    }
    /// Whether a flag is given.
    pub fn has(&self, name: &str) -> bool {
        self.given.iter().any(|g| g.name == name)
    }
}

struct Start {
    engine: Engine,
    /// Words before this one may set variables.
    front: usize,
    /// The first argument.
    arguments: usize,
    tag: Option<String>,
}

fn find_start(words: &[Word]) -> Option<Start> {
    let text = |i: usize| words.get(i).map_or("", |w| w.text.as_str());
    let mut image: Option<Start> = None;
    for (i, word) in words.iter().enumerate() {
        let name = word.text.rsplit('/').next().unwrap_or_default();
        let start = |engine, skip| Start { engine, front: i, arguments: i + skip, tag: image_tag(words, i) };
        match name {
            "sglang.launch_server" | "launch_server.py" => return Some(start(Engine::Sglang, 1)),
            "sglang" if text(i + 1) == "serve" => return Some(start(Engine::Sglang, 2)),
            "vllm" if text(i + 1) == "serve" => return Some(start(Engine::Vllm, 2)),
            _ if name.starts_with("vllm.entrypoints") => return Some(start(Engine::Vllm, 1)),
            // The image's entry point is the server: what follows are its arguments.
            _ if image.is_none() && name.starts_with("vllm-openai") => {
                let tag = name.split_once(':').map(|(_, tag)| tag.split('@').next().unwrap_or(tag).to_owned());
                // `--entrypoint vllm IMAGE serve MODEL`.
                let skip = if text(i + 1) == "serve" { 2 } else { 1 };
                image = Some(Start { engine: Engine::Vllm, front: i, arguments: i + skip, tag });
            }
            _ if image.is_none() && serves(words, i) => {
                let skip = if text(i + 1) == "serve" { 2 } else { 1 };
                image = Some(Start { engine: Engine::Vllm, front: i, arguments: i + skip, tag: image_tag(words, i + 1) });
            }
            _ => {}
        }
    }
    image
}

/// Whether a word is somebody's own image of vLLM, of which the entry point is the server as well: it is the image of a `docker run`, has `vllm` in its
/// name, and a model follows.
fn serves(words: &[Word], at: usize) -> bool {
    let text = |i: usize| words.get(i).map_or("", |w| w.text.as_str());
    let run = words[..at].windows(2).any(|w| matches!(w[0].text.as_str(), "docker" | "podman" | "nerdctl") && w[1].text == "run");
    let option = text(at).starts_with('-') || text(at).contains('=');
    // What stands behind an option with a value is that value.
    let behind = at > 0 && {
        let before = text(at - 1);
        before.starts_with('-')
            && !matches!(before, "-d" | "-it" | "-ti" | "-i" | "-t" | "--rm" | "--init" | "--privileged" | "--detach")
            && !before.contains('=')
    };
    let next = text(at + 1);
    let model = matches!(next, "--model" | "serve")
        || next.contains('/') && !next.starts_with('-') && !next.contains([':', '=']) && is_flag_text(text(at + 2));
    run && !option && !behind && text(at).contains("vllm") && model
}

fn is_flag_text(word: &str) -> bool {
    word.starts_with("--")
}

/// The tag of an engine's image among the words before `end`.
fn image_tag(words: &[Word], end: usize) -> Option<String> {
    words[..end].iter().find_map(|w| {
        let (name, tag) = w.text.rsplit('/').next()?.split_once(':')?;
        let tag = tag.split('@').next().unwrap_or(tag);
        (name.contains("sglang") || name.contains("vllm")).then(|| tag.to_owned())
    })
}

/// `NAME=value`, `-e NAME=value`, `--env=NAME=value`.
fn variables(words: &[Word], env: &mut BTreeMap<String, String>) {
    for word in words {
        let text = word.text.trim_end_matches(';');
        let text = text.strip_prefix("--env=").or_else(|| text.strip_prefix("-e")).unwrap_or(text);
        let Some((name, value)) = text.split_once('=') else { continue };
        let named = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if named && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            env.insert(name.to_owned(), value.to_owned());
        }
    }
}

fn ends_command(word: &str) -> bool {
    matches!(word, "|" | "||" | "&" | "&&" | ";" | "2>&1" | "&>" | "<") || word.starts_with('>') || word.starts_with("2>")
}

struct Arguments<'a> {
    text: &'a str,
    words: &'a [Word],
    at: usize,
    engine: Engine,
    version: &'a Version,
    command: &'a mut Command,
}

impl Arguments<'_> {
    fn read(&mut self) {
        while let Some(word) = self.words.get(self.at) {
            self.at += 1;
            if is_flag(word) {
                self.flag(word.clone());
            } else if word.text.starts_with('<') && !word.quoted {
                // A placeholder in the model's place is the model as well.
                self.command.placeholders.push(word.text.clone());
                self.positional(&word.clone());
            } else {
                self.positional(&word.clone());
            }
        }
        let named = match self.engine {
            Engine::Sglang => self.command.value("--model-path"),
            Engine::Vllm => self.command.value("--model"),
        };
        if let Some(model) = named.map(str::to_owned) {
            self.command.model = Some(model);
        }
    }

    fn positional(&mut self, word: &Word) {
        let takes_one = self.engine == Engine::Vllm && self.command.model.is_none() && !self.command.has("--model");
        let left_out =
            matches!(word.text.trim_matches(['[', ']', '(', ')']), "..." | ".." | "\u{2026}" | "\\" | "" | "OPTIONS" | "options");
        // vLLM's model comes first; a word behind flags is one as well, for there is no other positional.
        if takes_one {
            self.command.model = Some(word.text.clone());
        } else if !is_placeholder(&word.text) && !word.text.starts_with('<') && !left_out {
            let before = self.at.checked_sub(2).and_then(|i| self.words.get(i));
            let between = before.and_then(|b| self.text.get(b.span.end..word.span.start)).unwrap_or_default();
            let own_line = between.contains('\n') && !between.contains('\\');
            let last = self.command.given.last().filter(|g| before.is_some_and(|b| b.span == g.span) && g.value.is_none() && g.known);
            let behind = last.filter(|_| !own_line).map(|g| g.written.clone());
            self.command.stray.push(Stray { text: word.text.clone(), span: word.span.clone(), behind, on_its_own_line: own_line });
        } else if word.text.starts_with('$') {
            self.command.placeholders.push(word.text.clone());
        }
    }

    fn flag(&mut self, word: Word) {
        let (written, inline) = match word.text.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (word.text.clone(), None),
        };
        let mut span = word.span.clone();
        if let Some((name, path)) = dotted(self.engine, &written) {
            let value = inline.or_else(|| self.values(Value::Text, &mut span)).unwrap_or_else(|| "true".to_owned());
            self.nested(name, &path, &value, written, span);
            return;
        }
        let (flag, rest) = self.lookup(&written);
        let value = match (flag.map(|f| f.value), rest.or(inline)) {
            (_, Some(value)) => Some(value),
            (Some(Value::Switch), None) => None,
            (value, None) => self.values(value.unwrap_or(Value::List), &mut span),
        };
        if let Some(text) = value.as_ref().filter(|v| is_placeholder(v)) {
            self.command.placeholders.push(text.clone());
        }
        let name = flag.map_or_else(|| written.clone(), |f| f.name.to_owned());
        self.command.given.push(Given { name, written, value, span, known: flag.is_some() });
    }

    /// The flag, and a value that is glued to it (`-O3`, `-tp8` is none).
    fn lookup(&self, written: &str) -> (Option<&'static Flag>, Option<String>) {
        if let Some(flag) = flags::find(self.engine, written) {
            return (Some(flag), None);
        }
        if let Some(level) = written.strip_prefix("-O").filter(|l| !l.is_empty() && self.engine == Engine::Vllm) {
            return (flags::find(self.engine, "-O"), Some(level.trim_start_matches('.').to_owned()));
        }
        // `--no-flag` switches off what argparse's boolean actions switch on.
        let positive = written.strip_prefix("--no-").and_then(|name| flags::find(self.engine, &format!("--{name}")));
        if let Some(flag) = positive.filter(|f| f.value == Value::Switch) {
            return (Some(flag), Some("false".to_owned()));
        }
        match flags::beginning_with(self.engine, written, self.version)[..] {
            [flag] if written.len() > 4 => (Some(flag), None),
            _ => (None, None),
        }
    }

    /// Words that follow a flag as its value.
    fn values(&mut self, value: Value, span: &mut Range<usize>) -> Option<String> {
        let mut out: Vec<String> = Vec::new();
        while let Some(word) = self.words.get(self.at).filter(|w| !is_flag(w)) {
            out.push(word.text.clone());
            span.end = word.span.end;
            self.at += 1;
            if !matches!(value, Value::List | Value::Words) {
                break;
            }
        }
        (!out.is_empty()).then(|| out.join(" "))
    }

    /// `--compilation-config.mode 3` sets a field of a JSON value.
    fn nested(&mut self, name: &'static str, path: &[String], value: &str, written: String, span: Range<usize>) {
        let parsed = serde_json::from_str(&value.to_lowercase()).unwrap_or_else(|_| serde_json::Value::String(value.to_owned()));
        let leaf = path.iter().rev().fold(parsed, |inner, key| serde_json::json!({ (key.as_str()): inner }));
        let old = self.command.given.iter().position(|g| g.name == name);
        let mut base = old
            .and_then(|i| self.command.given[i].value.as_deref())
            .and_then(|v| serde_json::from_str(v).ok())
            .unwrap_or_else(|| serde_json::json!({}));
        merge(&mut base, leaf);
        match old {
            Some(i) => self.command.given[i].value = Some(base.to_string()),
            None => self.command.given.push(Given { name: name.to_owned(), written, value: Some(base.to_string()), span, known: true }),
        }
    }
}

fn merge(base: &mut serde_json::Value, leaf: serde_json::Value) {
    match (base, leaf) {
        (serde_json::Value::Object(base), serde_json::Value::Object(leaf)) => {
            for (key, value) in leaf {
                merge(base.entry(key).or_insert(serde_json::Value::Null), value);
            }
        }
        (base, leaf) => *base = leaf,
    }
}

/// `--attention_config.use_fp4_indexer_cache`: the JSON flag and the path in its value.
fn dotted(engine: Engine, written: &str) -> Option<(&'static str, Vec<String>)> {
    let (name, path) = written.split_once('.').filter(|(name, _)| name.starts_with('-'))?;
    let flag = flags::find(engine, name).filter(|f| f.value == Value::Json)?;
    Some((flag.name, path.split('.').map(str::to_owned).collect()))
}

/// A flag begins with a dash and is not a negative number.
fn is_flag(word: &Word) -> bool {
    word.text.len() > 1 && word.text.starts_with('-') && !word.text[1..].starts_with(|c: char| c.is_ascii_digit() || c == '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Command {
        let engine = engine_of(text).unwrap();
        parse(text, &Version::newest(engine)).unwrap()
    }

    #[test]
    fn aliases_abbreviations_and_glued_values_mean_the_same() {
        let a = of("python -m sglang.launch_server --model m --tp 8 --speculative-algo EAGLE --mem_fraction_static=0.9");
        assert_eq!(a.model.as_deref(), Some("m"));
        assert_eq!(a.value("--tp-size"), Some("8"));
        assert_eq!(a.value("--speculative-algorithm"), Some("EAGLE"));
        assert_eq!(a.value("--mem-fraction-static"), Some("0.9"));
        let b = of("vllm serve m -dp=8 -tp 2 -O3 --max-model-len -1 --enable-expert-parallel");
        assert_eq!((b.value("--data-parallel-size"), b.value("--tensor-parallel-size")), (Some("8"), Some("2")));
        assert_eq!((b.value("--compilation-config"), b.value("--max-model-len")), (Some("3"), Some("-1")));
        assert_eq!(b.value("--enable-expert-parallel"), Some("true"));
    }

    #[test]
    fn dotted_flags_are_fields_of_json_values() {
        let c = of(
            "vllm serve m --attention_config.use_fp4_indexer_cache=True --speculative-config {\"method\":\"mtp\"} --speculative-config.num_speculative_tokens 2",
        );
        assert_eq!(c.value("--attention-config"), Some("{\"use_fp4_indexer_cache\":true}"));
        assert_eq!(c.value("--speculative-config"), Some("{\"method\":\"mtp\",\"num_speculative_tokens\":2}"));
    }

    #[test]
    fn containers_and_environments_are_read() {
        let c = of(
            "docker run --gpus all -e NCCL_P2P_DISABLE=1 --env A=b lmsysorg/sglang:v0.5.9 \\\n python3 -m sglang.launch_server --model-path x --port 1 2>&1 | tee log",
        );
        assert_eq!(c.image_tag.as_deref(), Some("v0.5.9"));
        assert_eq!(c.env.get("NCCL_P2P_DISABLE").map(String::as_str), Some("1"));
        assert_eq!(c.env.get("A").map(String::as_str), Some("b"));
        assert!(c.stray.is_empty(), "{:?}", c.stray);
        let inner = of("docker run -e A=1 vllm/vllm-openai:v0.12.0 bash -lc 'B=2 vllm serve m -tp 4 && echo done'");
        assert_eq!((inner.value("--tensor-parallel-size"), inner.image_tag.as_deref()), (Some("4"), Some("v0.12.0")));
        assert_eq!(inner.env.len(), 2);
        let entry = of("docker run --entrypoint vllm vllm/vllm-openai:cu130-nightly serve m --max-model-len 8");
        assert_eq!((entry.model.as_deref(), entry.image_tag.as_deref()), (Some("m"), Some("cu130-nightly")));
        let compose = of("image: vllm/vllm-openai:v0.11.0\nenvironment:\n  - A=1\ncommand: [\"--model\", \"m\", \"-tp\", \"2\"]\n");
        assert_eq!((compose.model.as_deref(), compose.value("--tensor-parallel-size")), (Some("m"), Some("2")));
        for (own, tag) in
            [("someone/vllm-mtp:latest", Some("latest")), ("registry.io/x/vllm-sm89:0.28.1-cu130", Some("0.28.1-cu130")), ("my-vllm", None)]
        {
            let own = of(&format!("docker run -d --gpus all -v /a/vllm:/b --name vllm-x -e A=1 {own} --model m -tp 4"));
            assert_eq!((own.model.as_deref(), own.value("--tensor-parallel-size"), own.image_tag.as_deref()), (Some("m"), Some("4"), tag));
        }
        let path = of("docker run --gpus all x/vllm-fork:1 /models/a --tensor-parallel-size 2");
        assert_eq!((path.model.as_deref(), path.value("--tensor-parallel-size")), (Some("/models/a"), Some("2")));
        assert_eq!(parse("docker run --name vllm-x ubuntu ls --model", &Version::newest(Engine::Vllm)), Err(CommandError::NoEngine));
        let v = of("docker run --rm vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-30B-A3B -tp 2");
        assert_eq!(
            (v.engine, v.model.as_deref(), v.image_tag.as_deref()),
            (Some(Engine::Vllm), Some("Qwen/Qwen3-30B-A3B"), Some("v0.11.0"))
        );
        let e = of("CUDA_VISIBLE_DEVICES=0,1 vllm serve m");
        assert_eq!(e.env.get("CUDA_VISIBLE_DEVICES").map(String::as_str), Some("0,1"));
        assert_eq!(parse("ls -l", &Version::newest(Engine::Vllm)), Err(CommandError::NoEngine));
    }

    #[test]
    fn commands_for_another_host_or_window_are_read() {
        for text in [
            "ssh gpu1 vllm serve m -tp 2",
            "ssh gpu1 \"vllm serve m -tp 2\"",
            "ssh -p 22 me@gpu1 'cd /x && A=1 vllm serve m -tp 2' 2>&1 | tee log",
            "sshpass -p x /usr/bin/ssh -t gpu1 \"source v/bin/activate; vllm serve m -tp 2\"",
            "tmux new-session -d -s llm 'vllm serve m -tp 2'",
            "tmux send-keys -t llm \"vllm serve m -tp 2\" Enter",
            "eval \"vllm serve m -tp 2\"",
        ] {
            let c = of(text);
            assert_eq!((c.model.as_deref(), c.value("--tensor-parallel-size")), (Some("m"), Some("2")), "{text}");
            assert!(c.stray.is_empty(), "{text}: {:?}", c.stray);
            assert_eq!(&text[c.given[0].span.clone()], "-tp 2", "{text}");
        }
        // A container takes a quoted line for the name of a program, and what was said of another statement is over.
        for text in ["docker run image 'vllm serve m'", "ssh gpu1 nvidia-smi; echo 'vllm serve m'"] {
            assert_eq!(engine_of(text), None, "{text}");
        }
    }

    #[test]
    fn variables_of_the_shell_are_put_in() {
        let c = of("MODEL=org/m\nTP=8\nvllm serve $MODEL -tp ${TP} --max-model-len ${LEN:-4096} --port $PORT");
        assert_eq!((c.model.as_deref(), c.value("--tensor-parallel-size")), (Some("org/m"), Some("8")));
        assert_eq!((c.value("--max-model-len"), c.placeholders.as_slice()), (Some("4096"), ["$PORT".to_owned()].as_slice()));
    }

    #[test]
    fn words_without_a_flag_are_kept_apart() {
        let c = of("vllm serve m --enable-expert-parallel true --x ...");
        assert_eq!((c.stray.len(), c.stray[0].behind.as_deref()), (1, Some("--enable-expert-parallel")));
        assert!(of("vllm serve m --enable-expert-parallel ... [OPTIONS]").stray.is_empty());
        assert!(of("vllm serve m --enable-expert-parallel\nthen it hangs").stray.iter().any(|s| s.on_its_own_line));
    }

    #[test]
    fn unknown_flags_keep_their_name_and_value() {
        let c = of("vllm serve m --tensor-paralel-size 8 --x");
        assert_eq!(c.given[0].name, "--tensor-paralel-size");
        assert!(!c.given[0].known && c.given[0].value.as_deref() == Some("8"));
        assert_eq!(nearest(Engine::Vllm, "--tensor-paralel-size"), ["--tensor-parallel-size"]);
    }
}
