//! `moetwin sim --report`: the page as a file, and in a real browser.

#[path = "support/browser.rs"]
mod browser;
mod support;

use browser::Browser;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use support::{line, moetwin, scratch};

/// Writes a report; exit code 0 or 1.
fn report(folder: &Path, name: &str, words: &str) -> PathBuf {
    let file = folder.join(name);
    let mut arguments: Vec<&str> = vec!["sim", "--report", file.to_str().unwrap()];
    arguments.extend(words.split_whitespace());
    let run = moetwin(&arguments);
    assert!(run.code <= 1, "{words}: {}", run.err);
    file
}

/// The JSON in a page.
fn facts(html: &str) -> Value {
    let begin = "<script type=\"application/json\" id=\"facts\">";
    let text = html.split_once(begin).expect("facts").1.split_once("</script>").expect("an end").0;
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_page_says_what_the_json_says_and_is_the_same_twice() {
    let folder = scratch("report-same");
    for (i, words) in [
        "",
        "--batch 4 --graphs off",
        "--spec eagle3:2",
        "--batch 4096 --context 65536",
        "--phase prefill --machine 8x-h200-sxm --model qwen3-30b-a3b --tp 1",
    ]
    .into_iter()
    .enumerate()
    {
        let first = fs::read(report(&folder, &format!("{i}.html"), words)).unwrap();
        assert_eq!(
            fs::read(report(&folder, &format!("{i}-again.html"), words)).unwrap(),
            first,
            "{words}: another file name, the same bytes"
        );
        assert!(first.len() < 2 << 20, "{words}: {} bytes", first.len());
        let html = String::from_utf8(first).unwrap();
        let facts = facts(&html);
        let json = line(&format!("sim --json {words}"));
        assert_eq!(facts["sim"], serde_json::from_str::<Value>(&json.out).unwrap(), "{words}");
        // What people read is in the markup, not only in the data.
        let markup = html.split_once("id=\"facts\"").unwrap().0;
        if let (Some(step), Some(rate)) = (facts["sim"]["step_ms"].as_f64(), facts["sim"]["tokens_per_s"].as_f64()) {
            for shown in [format!(">{step:.2} "), format!(">{rate:.1} ")] {
                assert!(markup.contains(&shown), "{words}: no {shown}");
            }
        }
        for row in facts["sim"]["breakdown"].as_array().unwrap() {
            assert!(markup.contains(&format!(">{:.3}<", row["ms"].as_f64().unwrap())), "{words}: {row}");
        }
        assert!(!html.contains("http://") && !html.contains("https://"), "{words}: an address");
    }
}

#[test]
fn changes_are_simulated_and_agree_with_the_flags_they_name() {
    let folder = scratch("report-changes");
    let html = fs::read_to_string(report(&folder, "a.html", "--batch 2")).unwrap();
    let facts = facts(&html);
    let changes = facts["sensitivity"].as_array().unwrap();
    let base = facts["sim"]["tokens_per_s"].as_f64().unwrap();
    let mut flags = 0;
    for change in changes.iter().filter(|c| c["kind"] == "flag") {
        let asked = line(&format!("sim --json --batch 2 {}", change["how"].as_str().unwrap()));
        assert_eq!(asked.json()["tokens_per_s"], change["tokens_per_s"], "{change}");
        flags += 1;
    }
    assert!(flags >= 4, "{changes:?}");
    // Faster memory gives what the breakdown says that memory takes; half of it remains.
    let of = |name: &str| changes.iter().find(|c| c["what"] == name).unwrap()["tokens_per_s"].as_f64().unwrap();
    let memory = facts["sim"]["bounds"]["memory"].as_f64().unwrap();
    let expected = base / (1.0 - memory / 2.0);
    assert!((of("Faster memory") / expected - 1.0).abs() < 0.05, "{} {expected}", of("Faster memory"));
    assert!(of("Fewer kernels") > base && of("Nearer links") > base);
}

#[test]
fn names_of_machines_do_not_break_the_page() {
    let folder = scratch("report-names");
    let mut machine: Value = serde_json::from_str(&line("machine show 2x-rtx-4090 --json").out).unwrap();
    let evil = "box</script><script>document.title='broken'</script>&\"'<!--";
    machine["name"] = evil.into();
    let file = folder.join("machine.json");
    fs::write(&file, machine.to_string()).unwrap();
    let html = fs::read_to_string(report(&folder, "a.html", &format!("--machine {} --model qwen3-30b-a3b", file.display()))).unwrap();
    assert_eq!(facts(&html)["sim"]["machine"], evil);
    assert_eq!(html.matches("<script").count(), 2, "data and program");
    assert_eq!(html.matches("</script>").count(), 2);
    assert!(!html.contains("<!--"));
    if let Some(browser) = browser() {
        let mut page = Browser::start(&browser, &folder.join("profile"));
        page.open(&folder.join("a.html"));
        assert_eq!(page.value("document.title"), format!("Qwen/Qwen3-30B-A3B on {evil}"));
        assert_eq!(page.value("JSON.parse(document.getElementById('facts').textContent).sim.machine"), evil);
        quiet(&page);
    }
}

#[test]
fn what_cannot_be_written_is_refused_before_the_work() {
    let folder = scratch("report-refused");
    moetwin(&["sim", "--report", folder.to_str().unwrap()]).refused(&["--report", "is a folder"]);
    moetwin(&["sim", "--report", "no/such/folder/x.html"]).refused(&["--report", "cannot be written"]);
}

/// The browser, or `None` where there is none and nobody requires one.
fn browser() -> Option<String> {
    let found = browser::find();
    let required = std::env::var_os("MOETWIN_BROWSER").is_some();
    assert!(found.is_some() || !required, "MOETWIN_BROWSER is set and no Chromium was found (Debian: apt-get install chromium)");
    found
}

/// Asserts that the page asked for nothing and complained about nothing.
#[track_caller]
fn quiet(page: &Browser) {
    for event in &page.events {
        let method = event["method"].as_str().unwrap_or_default();
        assert!(!["Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"].contains(&method), "{event}");
        let url = &event["params"]["request"]["url"];
        assert!(method != "Network.requestWillBeSent" || url.as_str().is_some_and(|u| u.starts_with("file://")), "{event}");
    }
}

/// Text that stands out too little from what is behind it (WCAG AA), as `[ratio, tag, text]`.
const CONTRAST: &str = r#"(() => {
  const rgb = (c) => (c.match(/[\d.]+/g) || []).map(Number);
  const lum = (c) => { const f = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4); };
    return 0.2126 * f(c[0]) + 0.7152 * f(c[1]) + 0.0722 * f(c[2]); };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] === 1) return c; }
    return [255, 255, 255]; };
  const bad = []; let seen = 0;
  for (const e of document.body.querySelectorAll("*")) {
    if (e.closest("script, noscript, .skip, [hidden]") || ![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    const s = getComputedStyle(e); if (s.visibility === "hidden" || !e.getClientRects().length) continue;
    const text = e.namespaceURI.includes("svg") && e.tagName !== "svg" ? s.fill : s.color;
    const a = lum(rgb(text)), b = lum(behind(e)), ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    seen++; if (ratio < 4.5) bad.push([ratio.toFixed(2), e.tagName, e.textContent.trim().slice(0, 40)]);
  }
  return { seen, bad };
})()"#;

/// The element in focus, and whether one sees that it is.
const FOCUS: &str = r#"(() => { const e = document.activeElement; if (!e || e === document.body) return null; const s = getComputedStyle(e), r = e.getBoundingClientRect();
  return { name: e.id || e.getAttribute("aria-label") || e.textContent.trim().slice(0, 40), tag: e.tagName, outline: s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2,
    onScreen: r.width > 0 && r.bottom > 0 && r.top < innerHeight }; })()"#;

/// Colours on the time line: how many, and the one of most pixels.
const PAINTED: &str = r#"(() => { const c = document.getElementById("lanes"), d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data, n = new Map();
  for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255) { const k = d[i] + "," + d[i + 1] + "," + d[i + 2]; n.set(k, (n.get(k) || 0) + 1); }
  return [...n.entries()].sort((a, b) => b[1] - a[1]).slice(0, 30).map((e) => e[0]); })()"#;

#[test]
fn the_page_is_readable_and_reachable_in_a_browser() {
    let Some(found) = browser() else { return };
    let folder = scratch("report-browser");
    let file = report(&folder, "a.html", "");
    let mut page = Browser::start(&found, &folder.join("profile"));
    let mut colours = Vec::new();
    for (dark, width) in [(false, 1280), (true, 1280), (true, 390), (false, 390)] {
        page.screen(dark, width);
        page.open(&file);
        page.drawn();
        // Folded parts count too.
        page.value("document.querySelectorAll('details').forEach((d) => d.open = true)");
        let contrast = page.value(CONTRAST);
        assert_eq!(contrast["bad"], serde_json::json!([]), "dark {dark}, {width} wide");
        assert!(contrast["seen"].as_u64().unwrap() > 300, "{contrast}");
        assert_eq!(
            page.value("document.documentElement.scrollWidth > innerWidth"),
            false,
            "{width} wide: the page itself does not scroll sideways"
        );
        let painted = page.value(PAINTED);
        assert!(painted.as_array().unwrap().len() > 6, "dark {dark}, {width} wide: {painted}");
        colours.push(painted);
        quiet(&page);
        save(&mut page, &format!("{}-{width}", if dark { "dark" } else { "light" }));
    }
    assert_ne!(colours[0], colours[1], "the time line follows the scheme");
    assert_eq!(page.value("performance.getEntriesByType('resource').length"), 0);
    // One heading a level and section, in order; every picture has words.
    let headings = page.value("[...document.querySelectorAll('h1,h2,h3')].map((h) => +h.tagName[1])");
    let levels: Vec<u64> = headings.as_array().unwrap().iter().map(|l| l.as_u64().unwrap()).collect();
    assert_eq!((levels[0], levels.iter().filter(|l| **l == 1).count()), (1, 1));
    assert!(levels.windows(2).all(|w| w[1] <= w[0] + 1), "{levels:?}");
    assert_eq!(
        page.value(
            "[...document.querySelectorAll('svg')].filter((s) => !s.hasAttribute('aria-hidden') && !s.getAttribute('aria-label')).length"
        ),
        0
    );
    assert_eq!(
        page.value("[...document.querySelectorAll('section')].every((s) => document.getElementById(s.getAttribute('aria-labelledby')))"),
        true
    );
}

#[test]
fn the_page_is_used_by_keyboard() {
    let Some(found) = browser() else { return };
    let folder = scratch("report-keyboard");
    let file = report(&folder, "a.html", "");
    let mut page = Browser::start(&found, &folder.join("profile"));
    page.screen(false, 1280);
    page.open(&file);
    page.drawn();
    let mut reached: Vec<Value> = Vec::new();
    for _ in 0..120 {
        page.press("Tab");
        let focus = page.value(FOCUS);
        if focus.is_null() || reached.contains(&focus) {
            break;
        }
        assert!(focus["outline"] == true && focus["onScreen"] == true, "{focus}");
        reached.push(focus);
    }
    let names: Vec<&str> = reached.iter().map(|f| f["name"].as_str().unwrap()).collect();
    for name in ["To the content", "zoom-in", "whole", "deciding", "lanes", "Topology", "GiB of ranks 0-7, by phase", "Command"] {
        assert!(names.contains(&name), "{name} is not reached: {names:?}");
    }
    let focusable = page
        .value("[...document.querySelectorAll('a[href],button,input,summary,[tabindex=\"0\"]')].filter((e) => e.checkVisibility()).length");
    assert_eq!(reached.len() as u64, focusable.as_u64().unwrap(), "{names:?}");
    // The time line.
    page.value("document.getElementById('lanes').focus()");
    let view =
        |page: &mut Browser| page.value("document.getElementById('lanes').getAttribute('aria-valuetext')").as_str().unwrap().to_owned();
    let mut seen = vec![view(&mut page)];
    for key in ["0", "+", "ArrowRight", "-", "1", "ArrowLeft"] {
        page.press(key);
        let now = view(&mut page);
        assert_ne!(seen.last(), Some(&now), "{key} changes the view");
        seen.push(now);
    }
    assert!(seen[1].starts_with("from 0.00 µs to "), "{}", seen[1]);
    let detail = |page: &mut Browser| page.value("document.getElementById('detail').textContent").as_str().unwrap().to_owned();
    for (key, words) in [(".", "Rank 0"), ("ArrowDown", "Rank"), (".", "µs from"), ("Escape", "Point at a span")] {
        page.press(key);
        let text = detail(&mut page);
        assert!(text.contains(words), "{key}: {text}");
    }
    quiet(&page);
}

/// Keeps a picture of the page where `MOETWIN_SCREENSHOTS` names a folder, for people.
fn save(page: &mut Browser, name: &str) {
    let Some(folder) = std::env::var_os("MOETWIN_SCREENSHOTS") else { return };
    let text = page.picture();
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for four in text.as_bytes().chunks(4) {
        let digit = |c: u8| match c {
            b'A'..=b'Z' => u32::from(c - b'A'),
            b'a'..=b'z' => u32::from(c - b'a') + 26,
            b'0'..=b'9' => u32::from(c - b'0') + 52,
            b'+' => 62,
            b'/' => 63,
            _ => 0,
        };
        let value = four.iter().fold(0, |v, c| v << 6 | digit(*c));
        let kept = four.iter().filter(|c| **c != b'=').count().saturating_sub(1);
        bytes.extend(&value.to_be_bytes()[1..1 + kept]);
    }
    fs::write(Path::new(&folder).join(format!("{name}.png")), bytes).unwrap();
}
