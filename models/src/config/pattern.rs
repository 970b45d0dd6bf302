//! Which modules a quantization entry names.

use regex::{Regex, RegexBuilder};
use std::collections::BTreeSet;

/// Bytes a compiled pattern may take.
const REGEX_BYTES: usize = 1 << 20;

/// How entries without special characters match a dotted module name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plain {
    /// The whole name (compressed-tensors).
    Whole,
    /// The whole name or a container of the module (modelopt).
    Container,
    /// The whole name, a container of the module, or its last parts (transformers' `modules_to_not_convert`).
    ContainerOrTail,
}

/// A set of entries.
pub(super) struct Patterns {
    plain_rule: Plain,
    plain: BTreeSet<String>,
    /// Globs whose only special character is a final star, without it: a name that a container of the module matches, the module matches too.
    prefixes: Vec<String>,
    globs: Vec<String>,
    regexes: Vec<Regex>,
}

impl Patterns {
    pub(super) fn new(plain_rule: Plain) -> Self {
        Self { plain_rule, plain: BTreeSet::new(), prefixes: Vec::new(), globs: Vec::new(), regexes: Vec::new() }
    }

    /// Adds an entry: `re:` and a regular expression anchored at the start, a glob with `*` or `?`, or a name.
    pub(super) fn add(&mut self, entry: &str) -> Result<(), String> {
        if let Some(pattern) = entry.strip_prefix("re:") {
            // Python's re.match, which compressed-tensors uses, anchors at the start only.
            let regex = RegexBuilder::new(&format!("^(?:{pattern})")).size_limit(REGEX_BYTES).build();
            self.regexes.push(regex.map_err(|e| e.to_string())?);
        } else if self.plain_rule != Plain::Whole && entry.contains(['*', '?']) {
            match entry.strip_suffix('*') {
                Some(prefix) if !prefix.contains(['*', '?']) => self.prefixes.push(prefix.into()),
                _ => self.globs.push(entry.into()),
            }
        } else {
            self.plain.insert(entry.into());
        }
        Ok(())
    }

    /// Entries that are tried one by one on every name.
    pub(super) fn slow_entries(&self) -> usize {
        self.prefixes.len() + self.globs.len() + self.regexes.len()
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        if self.plain.contains(name) || self.regexes.iter().any(|r| r.is_match(name)) {
            return true;
        }
        if self.plain_rule == Plain::Whole {
            return false;
        }
        if self.prefixes.iter().any(|p| name.starts_with(p)) {
            return true;
        }
        let dots = || name.match_indices('.').map(|(i, _)| i);
        let mut containers = dots().map(|i| &name[..i]).chain([name]);
        if containers.any(|c| self.plain.contains(c) || self.globs.iter().any(|g| glob(g, c))) {
            return true;
        }
        self.plain_rule == Plain::ContainerOrTail && dots().any(|i| self.plain.contains(&name[i + 1..]))
    }
}

/// Shell-style match of a whole name: `*` is any run of characters, dots included, `?` any one.
fn glob(pattern: &str, name: &str) -> bool {
    let (p, n) = (pattern.as_bytes(), name.as_bytes());
    let (mut i, mut j) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while j < n.len() {
        match p.get(i) {
            Some(b'*') => {
                retry = Some((i + 1, j));
                i += 1;
            }
            Some(&c) if c == b'?' || c == n[j] => {
                i += 1;
                j += 1;
            }
            _ => match retry {
                Some((after_star, taken)) => {
                    retry = Some((after_star, taken + 1));
                    i = after_star;
                    j = taken + 1;
                }
                None => return false,
            },
        }
    }
    p[i..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(rule: Plain, entries: &[&str]) -> Patterns {
        let mut p = Patterns::new(rule);
        entries.iter().for_each(|e| p.add(e).unwrap());
        p
    }

    #[test]
    fn globs() {
        for (pattern, name, expected) in [
            ("a*", "a.b", true),
            ("*b", "a.b", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abcd", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*ab", "aaab", true),
            ("model.layers.78*", "model.layers.7.mlp", false),
        ] {
            assert_eq!(glob(pattern, name), expected, "{pattern} on {name}");
        }
    }

    #[test]
    fn kimi_entries_leave_only_the_routed_experts() {
        let p =
            patterns(Plain::Whole, &["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]);
        assert!(p.matches("lm_head"));
        assert!(p.matches("model.layers.3.self_attn.q_a_proj"));
        assert!(p.matches("model.layers.3.mlp.shared_experts.up_proj"));
        assert!(p.matches("model.layers.0.mlp.down_proj"));
        assert!(!p.matches("model.layers.3.mlp.experts.0.down_proj"));
        assert!(!p.matches("model.lm_head"));
    }

    #[test]
    fn names_match_whole_parts() {
        let tail = patterns(Plain::ContainerOrTail, &["gate", "lm_head", "model.layers.1"]);
        assert!(tail.matches("model.layers.0.block_sparse_moe.gate"));
        assert!(!tail.matches("model.layers.0.mlp.gate_proj"));
        assert!(tail.matches("model.layers.1.mlp.up_proj"));
        assert!(!tail.matches("model.layers.10.mlp.up_proj"));
        let container = patterns(Plain::Container, &["gate", "model.layers.1", "model.layers.*.self_attn"]);
        assert!(!container.matches("model.layers.0.block_sparse_moe.gate"));
        assert!(container.matches("model.layers.1.mlp.up_proj"));
        assert!(container.matches("model.layers.0.self_attn.q_proj"));
        assert!(!container.matches("model.layers.0.mlp.router"));
        let prefix = patterns(Plain::Container, &["model.layers.3.self_attn*", "model.layers.78*"]);
        assert!(prefix.matches("model.layers.3.self_attn.o_proj") && prefix.matches("model.layers.78.mlp.up_proj"));
        assert!(!prefix.matches("model.layers.30.self_attn.o_proj") && !prefix.matches("model.layers.7.mlp.up_proj"));
    }

    #[test]
    fn a_pattern_that_cannot_be_compiled_is_an_error() {
        assert!(Patterns::new(Plain::Whole).add("re:(").is_err());
        assert!(Patterns::new(Plain::Whole).add("re:(?=x)").is_err());
        assert!(Patterns::new(Plain::Whole).add("re:(a{1000}){1000}").is_err());
    }
}
