//! Why a command ends without an answer, and the message that marks the place.

use std::ffi::OsString;
use std::fmt::Write as _;

/// How a command that did its work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The answer is yes, or there was nothing to say no to.
    Yes,
    /// The answer is no.
    No,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something that was given is wrong.
    Input(InputError),
    /// Something went wrong while running.
    Running(String),
}

/// What is wrong with something that was given.
#[derive(Debug, Default)]
pub(crate) struct InputError {
    /// The flag, or the name of the positional argument.
    argument: String,
    /// The value as given, if one was.
    value: Option<String>,
    /// What is wrong.
    message: Box<str>,
    /// Flags that set the argument where it is not given itself, with their values. Boxed, since errors are returned everywhere.
    setters: Option<Box<[(&'static str, u32); 3]>>,
    /// Accepted values that look like the given one, best first.
    nearest: Vec<String>,
    /// Accepted values, or a sentence that describes them.
    accepted: Vec<String>,
}

impl InputError {
    /// `argument` (a flag with its dashes, or a positional's name) is wrong.
    pub(crate) fn new(argument: impl Into<String>, message: impl Into<String>) -> Self {
        Self { argument: argument.into(), message: message.into().into_boxed_str(), ..Self::default() }
    }
    /// What is wrong.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }
    /// Flags that set the argument where it is not given itself: the place that is marked is then theirs.
    pub(crate) fn set_by(mut self, setters: [(&'static str, u32); 3]) -> Self {
        self.setters = Some(Box::new(setters));
        self
    }
    /// The value as given.
    pub(crate) fn value(mut self, value: impl Into<String>) -> Self {
        self.value = Some(value.into());
        self
    }
    /// Names, of which those that resemble the value are shown. Call it after [`InputError::value`].
    pub(crate) fn names<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        self.nearest = self.value.as_ref().map(|value| crate::nearest::nearest(value, &names)).unwrap_or_default();
        self
    }
    /// What would have been accepted: values, or words that describe them.
    pub(crate) fn accepted<S: Into<String>>(mut self, accepted: impl IntoIterator<Item = S>) -> Self {
        self.accepted.extend(accepted.into_iter().map(Into::into));
        self
    }
    /// The error text; `arguments` is the command line, in which the place is marked.
    fn render(&self, arguments: impl Iterator<Item = OsString>) -> String {
        let words: Vec<String> = arguments.map(|a| a.to_string_lossy().into_owned()).collect();
        let given = |flag: &str| words.iter().any(|word| word == flag || word.strip_prefix(flag).is_some_and(|rest| rest.starts_with('=')));
        let (mut argument, mut value, mut message) = (self.argument.as_str(), self.value.clone(), self.message.to_string());
        if !given(argument)
            && let Some((flag, set)) = self.setters.iter().flat_map(|setters| setters.iter()).find(|(flag, _)| given(flag))
        {
            let is = value.as_ref().map_or_else(|| argument.to_owned(), |v| format!("{argument} {v}"));
            message = format!("which makes it {is}: {message}");
            (argument, value) = (flag, Some(set.to_string()));
        }
        let mut text = match &value {
            Some(v) => format!("error: {argument} '{v}': {message}"),
            None => format!("error: {argument}: {message}"),
        };
        if let Some(mark) = mark(argument, value.as_deref(), &words) {
            text.push_str(&mark);
        }
        if !self.nearest.is_empty() {
            let _ = write!(text, "\n  nearest: {}", self.nearest.join(", "));
        }
        if !self.accepted.is_empty() {
            let _ = write!(text, "\n  accepted: {}", self.accepted.join(", "));
        }
        text
    }
}

/// The command line with carets under the argument's value (under the flag where the value is not there), or nothing where neither was given.
fn mark(argument: &str, value: Option<&str>, words: &[String]) -> Option<String> {
    let prefix = format!("{argument}=");
    let (index, skip) = words.iter().enumerate().find_map(|(i, word)| {
        if argument.starts_with('-') && word == argument {
            let follows = words.get(i + 1).is_some_and(|next| Some(next.as_str()) == value);
            Some((i + usize::from(follows), 0))
        } else if word.starts_with(&prefix) {
            Some((i, prefix.chars().count()))
        } else if !argument.starts_with('-') && Some(word.as_str()) == value {
            Some((i, 0))
        } else {
            None
        }
    })?;
    let quoted: Vec<String> = words.iter().map(|w| quote(w)).collect();
    let before: usize = quoted[..index].iter().map(|w| w.chars().count() + 1).sum();
    let width = quoted[index].chars().count().saturating_sub(skip).max(1);
    let indent = "moetwin ".len() + before + skip;
    Some(format!("\n  moetwin {}\n  {}{}", quoted.join(" "), " ".repeat(indent), "^".repeat(width)))
}

/// A word as a shell would need it; control characters are escaped so that the marks stay in place.
fn quote(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_=./:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    let mut quoted = String::from("'");
    for c in word.chars() {
        if c.is_control() { quoted.extend(c.escape_default()) } else { quoted.push(c) }
    }
    quoted.push('\'');
    quoted
}

impl Failure {
    /// The process exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Input(_) => 2,
            Failure::Running(_) => 3,
        }
    }
    /// The text for standard error.
    pub(crate) fn render(&self, arguments: impl Iterator<Item = OsString>) -> String {
        match self {
            Failure::Input(e) => e.render(arguments),
            Failure::Running(message) => format!("error: {message}"),
        }
    }
}

impl From<InputError> for Failure {
    fn from(e: InputError) -> Self {
        Failure::Input(e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> impl Iterator<Item = OsString> {
        line.split(' ').map(OsString::from).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn the_mark_is_under_the_value() {
        let e =
            InputError::new("--model", "no such model").value("kimi-k3").names(["kimi-k2", "deepseek-v3"]).accepted(["kimi-k2", "a file"]);
        assert_eq!(
            e.render(words("sim --model kimi-k3 --json")),
            "error: --model 'kimi-k3': no such model\n  moetwin sim --model kimi-k3 --json\n                      ^^^^^^^\n  nearest: kimi-k2\n  accepted: kimi-k2, a file"
        );
        let equals = e.render(words("sim --model=kimi-k3"));
        assert!(equals.contains("\n  moetwin sim --model=kimi-k3\n                      ^^^^^^^\n"), "{equals}");
    }

    #[test]
    fn a_positional_is_marked_by_its_value_even_where_a_subcommand_has_its_name() {
        let text = InputError::new("model", "no").value("nope").render(words("model show nope"));
        assert!(text.ends_with("\n  moetwin model show nope\n                     ^^^^"), "{text}");
    }

    #[test]
    fn a_default_that_turned_out_wrong_has_no_mark_and_a_lone_flag_is_marked_itself() {
        let e = InputError::new("--tp", "does not divide");
        assert_eq!(e.render(words("sim --ep 3")), "error: --tp: does not divide");
        assert!(e.render(words("sim --tp 3")).ends_with("\n  moetwin sim --tp 3\n              ^^^^"));
    }

    #[test]
    fn the_flag_that_set_a_value_is_marked_in_its_place() {
        let e = InputError::new("--tp", "does not divide").value("3").set_by([("--dp-attention", 1), ("--ep", 3), ("--dcp", 1)]);
        assert_eq!(
            e.render(words("sim --ep 3")),
            "error: --ep '3': which makes it --tp 3: does not divide\n  moetwin sim --ep 3\n                   ^"
        );
        assert!(e.render(words("sim --tp 3 --ep 3")).starts_with("error: --tp '3': does not divide\n"));
    }

    #[test]
    fn marks_stay_in_place_behind_odd_words() {
        let words = ["sim", "--prompt", "a\nb c", "--tp", "x"].map(OsString::from);
        let text = InputError::new("--tp", "no").value("x").render(words.into_iter());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[1].chars().count(), lines[2].chars().count());
    }
}
