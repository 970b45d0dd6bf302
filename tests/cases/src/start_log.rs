//! Start-up logs of serving engines.

use crate::check_reason;
use moetwin_engines::log;

/// Any bytes as a start-up log: read without failing, every figure finite, an error on a line that exists, and the same again.
pub fn check_start_log(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let read = log::read(&text);
    let figures =
        [read.free_before_gib, read.free_after_gib, read.weights_gib, read.kv_gib, read.kv_tokens, read.required_kv_gib, read.graphs_gib];
    assert!(figures.iter().flatten().all(|f| f.is_finite()), "a figure that is not finite");
    if let Some(error) = &read.error {
        assert!(error.line >= 1 && error.line <= text.lines().count(), "an error on line {} that does not exist", error.line);
        assert!(read.died_in().is_some(), "an error without a phase");
    }
    check_reason(&read.ending());
    let mut numbers = moetwin_engines::Numbers::new();
    let pinned = log::pin(&read, &mut numbers);
    assert!(pinned.iter().all(|p| numbers.get(p.name) == Some(&p.logged)), "a pinned figure that is not the logged one");
    assert_eq!(log::read(&text), read);
}
