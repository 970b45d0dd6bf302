//! Names that resemble a mistyped one.

use moetwin::engines::command::distance;

/// At most three of `names` within a third of their length in edits, best first; ties keep the order of `names`.
pub(crate) fn nearest(word: &str, names: &[String]) -> Vec<String> {
    let word = alike(word);
    let mut scored: Vec<(usize, &String)> = names
        .iter()
        .map(|name| (distance(&word, &alike(name)), name))
        .filter(|(d, name)| *d <= (name.chars().count() / 3).max(1))
        .collect();
    scored.sort_by_key(|(d, _)| *d);
    scored.into_iter().take(3).map(|(_, name)| name.clone()).collect()
}

/// Lower case, with letters that are read as digits in their place: `H2OO` is `H200`.
fn alike(text: &str) -> String {
    text.to_lowercase().replace('o', "0").replace(['l', 'i'], "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_resembles_and_best_first() {
        let names: Vec<String> = ["deepseek-v3", "kimi-k2", "kimi-k2.5", "mixtral-8x7b"].map(String::from).to_vec();
        assert_eq!(nearest("kimi-k25", &names), ["kimi-k2", "kimi-k2.5"]);
        assert_eq!(nearest("Mixtral-8x7", &names), ["mixtral-8x7b"]);
        assert_eq!(nearest("H2OO", &["H100".to_owned(), "H200".to_owned()])[0], "H200");
        assert!(nearest("llama", &names).is_empty());
    }
}
