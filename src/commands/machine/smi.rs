//! What `nvidia-smi`, which comes with the driver, says of the running machine: sysfs has no NVLinks.

use moetwin::sim::topology::{MOST_BYTES, Source};
use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The tool, and what it is asked.
pub(super) const PROGRAM: &str = "nvidia-smi";
const ASKED: [&str; 2] = ["topo", "-m"];
/// How long it may take: it answers within two seconds where the driver is well.
pub(super) const DEADLINE: Duration = Duration::from_secs(15);

/// Its matrix of connections, or in a few words why there is none.
pub(super) fn matrix(program: &str, deadline: Duration) -> Result<Source, String> {
    let label = format!("{PROGRAM} {}", ASKED.join(" "));
    let spawned = Command::new(program).args(ASKED).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = spawned.map_err(|e| format!("{label}: {e}"))?;
    let mut out = child.stdout.take();
    // Read beside the waiting: a full pipe would hold the child.
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(out) = &mut out {
            out.take(MOST_BYTES as u64).read_to_end(&mut bytes).ok();
        }
        bytes
    });
    let end = Instant::now() + deadline;
    let status = loop {
        match child.try_wait().map_err(|e| format!("{label}: {e}"))? {
            Some(status) => break status,
            None if Instant::now() > end => {
                child.kill().and_then(|()| child.wait()).ok();
                return Err(format!("{label}: no answer within {} s, so the driver may hang", deadline.as_secs()));
            }
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    if !status.success() {
        return Err(format!("{label}: {status}"));
    }
    let bytes = reader.join().map_err(|_| format!("{label}: its output could not be read"))?;
    let text = String::from_utf8(bytes).map_err(|_| format!("{label}: its output is no UTF-8 text"))?;
    Ok(Source { label, text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn script(name: &str, body: &str) -> String {
        let path = std::env::temp_dir().join(format!("moetwin-smi-{}-{name}", std::process::id()));
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.to_string_lossy().into_owned()
    }

    #[test]
    fn an_answer_is_taken_and_everything_else_is_a_reason() {
        let asked = |name: &str, body: &str, deadline| {
            let program = script(name, body);
            let answer = matrix(&program, deadline);
            fs::remove_file(program).unwrap();
            answer
        };
        let good = asked("good", "echo \"GPU0 $1 $2\"", DEADLINE).unwrap();
        assert_eq!((good.label.as_str(), good.text.as_str()), ("nvidia-smi topo -m", "GPU0 topo -m\n"));
        assert!(asked("fails", "exit 9", DEADLINE).unwrap_err().contains("exit status: 9"));
        let from = Instant::now();
        assert!(asked("hangs", "exec sleep 60", Duration::from_millis(100)).unwrap_err().contains("no answer"));
        assert!(from.elapsed() < Duration::from_secs(20));
        assert!(matrix("/no/such/tool", DEADLINE).is_err());
    }
}
