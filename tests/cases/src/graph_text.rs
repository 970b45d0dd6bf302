//! Graph text: any bytes are refused with a place, or give a graph that verifies or does not, prints and reads back.

use crate::check_reason;
use moetwin_models::{Deployment, shard, text, verify};

/// Checks the reader, the verifier, the printer and the shard pass on any bytes.
pub fn check_graph_text(data: &[u8]) {
    let Ok(input) = std::str::from_utf8(data) else { return };
    let graph = match text::parse(input) {
        Ok(graph) => graph,
        Err(e) => {
            assert!(e.line >= 1 && e.column >= 1);
            return check_reason(&e.to_string());
        }
    };
    let printed = text::print(&graph);
    let again = text::parse(&printed).unwrap_or_else(|e| panic!("a printed graph is refused: {e}"));
    assert!(text::print(&again) == printed, "a graph changes when it is printed and read");
    if let Err(faults) = verify(&graph) {
        assert!(!faults.is_empty());
        faults.iter().take(100).for_each(|f| check_reason(&f.to_string()));
    }
    for tp in [1, 2] {
        match shard(&graph, &Deployment { tp, ..Deployment::single() }) {
            // Of a graph that no builder makes, the pass may make one that the verifier has to refuse.
            Ok(sharded) => drop(verify(&sharded)),
            Err(e) => check_reason(&e.to_string()),
        }
    }
}
