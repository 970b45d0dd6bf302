//! Other programs, waited for no longer than a bound.

use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Bytes of each output stream that are kept.
const MOST_BYTES: u64 = 16 << 20;

/// Runs a program to its end, or kills it at the deadline. Errors say what happened, not which program it was.
pub(crate) fn output(command: &mut Command, deadline: Duration) -> Result<Output, String> {
    let end = Instant::now() + deadline;
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|e| e.to_string())?;
    // Read beside the waiting: a full pipe would hold the child.
    let (stdout, stderr) = (child.stdout.take().map(collect), child.stderr.take().map(collect));
    let status = loop {
        match child.try_wait().map_err(|e| e.to_string())? {
            Some(status) => break status,
            None if Instant::now() > end => {
                // Whether it could be killed or not, nobody waits for it any longer.
                child.kill().and_then(|()| child.wait()).ok();
                return Err(format!("no answer within {deadline:?}"));
            }
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    let read = |stream: Option<JoinHandle<std::io::Result<Vec<u8>>>>| match stream.map(JoinHandle::join) {
        None => Ok(Vec::new()),
        Some(Ok(bytes)) => bytes.map_err(|e| format!("its output could not be read: {e}")),
        Some(Err(_)) => Err("its output could not be read".to_owned()),
    };
    Ok(Output { status, stdout: read(stdout)?, stderr: read(stderr)? })
}

fn collect(stream: impl Read + Send + 'static) -> JoinHandle<std::io::Result<Vec<u8>>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.take(MOST_BYTES).read_to_end(&mut bytes).map(|_| bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_heard_to_its_end_or_killed() {
        let shell = |script: &str, deadline| output(Command::new("sh").args(["-c", script]), deadline);
        let long = Duration::from_secs(60);
        // More than a pipe holds, on both streams.
        let heard = shell("head -c 200000 /dev/zero; head -c 200000 /dev/zero >&2; exit 3", long).unwrap();
        assert_eq!((heard.stdout.len(), heard.stderr.len(), heard.status.code()), (200_000, 200_000, Some(3)));
        let from = Instant::now();
        assert!(shell("exec sleep 60", Duration::from_millis(100)).unwrap_err().contains("no answer within 100ms"));
        assert!(from.elapsed() < Duration::from_secs(20));
        assert!(output(&mut Command::new("/no/such/program"), long).is_err());
    }
}
