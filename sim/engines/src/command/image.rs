//! What the tag of a container image says of the engine inside.

/// Version and CUDA toolkit of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// The version in words that [`crate::Version::parse`] reads; `None` where the tag names none (`latest`, `nightly`).
    pub version: Option<String>,
    /// The toolkit: `13.0`.
    pub cuda: Option<String>,
}

/// Reads a tag: `v0.5.9-cu130`, `cu130-nightly`, `nightly-dev-20251107-abc`, `25.09-py3` (NVIDIA's monthly images), `deepseek-v4-hopper`.
pub fn image(tag: &str) -> Image {
    let words: Vec<&str> = tag.split(['-', '_']).filter(|w| !w.is_empty()).collect();
    let cuda = words.iter().find_map(|w| toolkit(w));
    let rest: Vec<&str> = words.iter().copied().filter(|w| toolkit(w).is_none()).collect();
    let version = rest.iter().find_map(|w| release(w).or_else(|| day(w))).or_else(|| {
        // A tag of other words is an image for a model or a branch: newer than any release that its number might stand for.
        let moving = |w: &&str| {
            matches!(*w, "latest" | "nightly" | "dev" | "main" | "runtime" | "x86" | "64" | "amd64" | "arm64" | "aarch64" | "openai")
        };
        let named = !rest.is_empty() && !rest.iter().all(|w| moving(w) || commit(w));
        named.then(|| format!("{tag} image"))
    });
    Image { version, cuda }
}

/// `cu130`, `cu13`, `cu12.8`, `cuda13.0`, `cuda129`.
fn toolkit(word: &str) -> Option<String> {
    let digits = word.strip_prefix("cuda").or_else(|| word.strip_prefix("cu"))?;
    if let Some((major, minor)) = digits.split_once('.') {
        let minor = minor.split('.').next()?;
        return (major.parse::<u32>().is_ok() && minor.parse::<u32>().is_ok()).then(|| format!("{major}.{minor}"));
    }
    let all = digits.chars().all(|c| c.is_ascii_digit());
    match digits.len() {
        2 if all => Some(format!("{digits}.0")),
        3 if all => Some(format!("{}.{}", &digits[..2], &digits[2..])),
        _ => None,
    }
}

/// `v0.5.9`, `0.11.0`, `v0.5.3rc0`, `v0.5.8.post1`; a year and a month are NVIDIA's: `25.09`.
fn release(word: &str) -> Option<String> {
    let plain = word.strip_prefix('v').unwrap_or(word);
    let mut parts = plain.split('.');
    let (major, minor) = (parts.next()?.parse::<u32>().ok()?, parts.next()?);
    let number: u32 = minor.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok()?;
    if (23..=40).contains(&major) && (1..=12).contains(&number) {
        return Some(format!("20{major}-{number:02}"));
    }
    Some(plain.to_owned())
}

/// `20251107`.
fn day(word: &str) -> Option<String> {
    let fits = word.len() == 8 && word.starts_with("20") && word.chars().all(|c| c.is_ascii_digit());
    fits.then(|| format!("nightly {}-{}-{}", &word[..4], &word[4..6], &word[6..]))
}

fn commit(word: &str) -> bool {
    word.len() >= 7 && word.chars().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_say_version_and_toolkit() {
        let of = |tag: &str| {
            let image = image(tag);
            (image.version.unwrap_or_default(), image.cuda.unwrap_or_default())
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(of("v0.5.9-cu130"), pair("0.5.9", "13.0"));
        assert_eq!(of("cu130-nightly"), pair("", "13.0"));
        assert_eq!(of("v0.11.0"), pair("0.11.0", ""));
        assert_eq!(of("v0.5.3rc0-cu129-gb200"), pair("0.5.3rc0", "12.9"));
        assert_eq!(of("nightly-dev-20251107-1a2b3c4d"), pair("nightly 2025-11-07", ""));
        assert_eq!(of("25.09-py3"), pair("2025-09", ""));
        assert_eq!(of("latest"), pair("", ""));
        assert_eq!(of("dev-cu13"), pair("", "13.0"));
        assert_eq!(of("nightly-01d4d1ad375dc5854779c593eee093bcebb0cada"), pair("", ""));
        assert_eq!(of("deepseek-v4-hopper"), pair("deepseek-v4-hopper image", ""));
    }

    proptest::proptest! {
        /// Any tag is read.
        #[test]
        fn any_tag_is_read(tag in "(v?[0-9.]{1,8}|cu[0-9.]{0,5}|[-_]|[a-zé]{1,5}){0,8}") {
            let _ = image(&tag);
        }
    }
}
