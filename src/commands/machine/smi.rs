//! What `nvidia-smi`, which comes with the driver, says of the running machine: sysfs has no NVLinks.

use crate::child;
use moetwin::sim::topology::Source;
use std::process::Command;
use std::time::Duration;

/// The tool, and what it is asked.
const PROGRAM: &str = "nvidia-smi";
const ASKED: [&str; 2] = ["topo", "-m"];
/// How long it may take: it answers within two seconds where the driver is well.
const DEADLINE: Duration = Duration::from_secs(15);

/// Its matrix of connections, or in a few words why there is none.
pub(super) fn matrix() -> Result<Source, String> {
    asked(PROGRAM)
}

fn asked(program: &str) -> Result<Source, String> {
    let label = format!("{PROGRAM} {}", ASKED.join(" "));
    let said = child::output(Command::new(program).args(ASKED), DEADLINE).map_err(|e| format!("{label}: {e}"))?;
    if !said.status.success() {
        return Err(format!("{label}: {}", said.status));
    }
    let text = String::from_utf8(said.stdout).map_err(|_| format!("{label}: its output is no UTF-8 text"))?;
    Ok(Source { label, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_taken_and_everything_else_is_a_reason() {
        let good = asked("echo").unwrap();
        assert_eq!((good.label.as_str(), good.text.as_str()), ("nvidia-smi topo -m", "topo -m\n"));
        assert!(asked("false").unwrap_err().contains("exit status: 1"));
        assert!(asked("/no/such/tool").is_err());
    }
}
