//! Starting checks in processes of their own, and ending those that hang.

use super::{Check, Description, Finding, Item, Line, Measured, Outcome};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From a process's start to its first line: loading the driver, a context a GPU.
    pub start: Duration,
    /// One part of a check.
    pub item: Duration,
    /// Everything. What is left then is not checked.
    pub whole: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { start: Duration::from_secs(15), item: Duration::from_secs(8), whole: Duration::from_secs(57) }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Examination {
    /// The box.
    pub description: Description,
    /// Parts of checks, in order.
    pub findings: Vec<Finding>,
    /// How long it took.
    pub took: Duration,
}

/// Examines this box. `start` gives the command that carries out a check: this program, or a stand-in in tests.
///
/// # Errors
/// Where the box cannot even be described.
pub fn examine(start: &dyn Fn(Check, &[Item]) -> Command, limits: Limits) -> Result<Examination, String> {
    let begin = Instant::now();
    let end = begin + limits.whole;
    let mut examiner = Examiner { start, limits, end, findings: Vec::new() };
    let description = examiner.describe()?;
    let count = description.gpus.len();
    for check in Check::ALL.into_iter().skip(1) {
        let items = items(check, count);
        if !items.is_empty() {
            examiner.check(check, items);
        }
    }
    Ok(Examination { description, findings: examiner.findings, took: begin.elapsed() })
}

/// The parts of a check on `count` GPUs. NCCL's communicators of two are made by neighbours and by the two ends, which cover every
/// GPU: making them takes most of its time.
pub(super) fn items(check: Check, count: usize) -> Vec<Item> {
    let pairs = |ordered: bool| -> Vec<Item> {
        let all = (0..count).flat_map(|a| (0..count).map(move |b| (a, b)));
        all.filter(|(a, b)| if ordered { a != b } else { a < b }).map(|(a, b)| Item(vec![a, b])).collect()
    };
    match check {
        Check::Describe => Vec::new(),
        Check::Single => (0..count).map(|a| Item(vec![a])).collect(),
        Check::Copy | Check::Store | Check::Load | Check::Graph => pairs(true),
        Check::Flags => pairs(false),
        Check::Nccl => {
            let mut items: Vec<Item> = (1..count).map(|b| Item(vec![b - 1, b])).collect();
            if count > 2 {
                items.push(Item(vec![0, count - 1]));
                // All together first: that is what serves.
                items.insert(0, Item((0..count).collect()));
            }
            items
        }
    }
}

struct Examiner<'a> {
    start: &'a dyn Fn(Check, &[Item]) -> Command,
    limits: Limits,
    end: Instant,
    findings: Vec<Finding>,
}

/// A running check.
struct Running {
    child: Child,
    lines: Receiver<Line>,
    said: Receiver<String>,
}

impl Running {
    fn start(mut command: Command) -> std::io::Result<Self> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let ((tell, lines), (tell_said, said)) = (channel(), channel());
        std::thread::spawn(move || {
            for text in out.into_iter().flat_map(|o| BufReader::new(o).lines()).map_while(Result::ok) {
                // What else a library prints to standard output is none of ours.
                if let Ok(line) = serde_json::from_str(&text)
                    && tell.send(line).is_err()
                {
                    return;
                }
            }
        });
        std::thread::spawn(move || {
            let mut text = Vec::new();
            err.into_iter().for_each(|mut e| drop(e.read_to_end(&mut text)));
            tell_said.send(String::from_utf8_lossy(&text).into_owned()).ok();
        });
        Ok(Self { child, lines, said })
    }
    /// The next line; nothing where none comes in time, or where it ended.
    fn next(&self, until: Instant) -> Result<Line, RecvTimeoutError> {
        self.lines.recv_timeout(until.saturating_duration_since(Instant::now()))
    }
    /// Ends it, and how it had ended, in words: its code and the end of what it said.
    fn stop(mut self) -> String {
        self.child.kill().ok();
        let status = self.child.wait().map_or_else(|e| e.to_string(), |s| s.to_string());
        let said = self.said.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
        let lines: Vec<&str> = said.lines().filter(|l| !l.trim().is_empty()).collect();
        let last = lines[lines.len().saturating_sub(3)..].join(" | ");
        if last.is_empty() { format!("its process ended: {status}") } else { format!("its process ended: {status}: {last}") }
    }
}

impl Examiner<'_> {
    fn describe(&self) -> Result<Description, String> {
        let running = Running::start((self.start)(Check::Describe, &[])).map_err(|e| e.to_string())?;
        let until = Instant::now() + self.limits.start + self.limits.item;
        loop {
            match running.next(until.min(self.end)) {
                Ok(Line::Described(description)) => {
                    running.stop();
                    return Ok(*description);
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    running.stop();
                    return Err("the driver did not describe the GPUs in time; its process was ended. See `nvidia-smi` and `dmesg`".into());
                }
                Err(RecvTimeoutError::Disconnected) => return Err(format!("describing the GPUs: {}", running.stop())),
            }
        }
    }
    /// All items of a check. A process that hangs or ends early costs the item that it was at; the others go on in a new one.
    fn check(&mut self, check: Check, mut left: Vec<Item>) {
        while !left.is_empty() {
            if Instant::now() > self.end {
                left.drain(..).for_each(|item| self.find(check, item, Outcome::NotChecked));
                return;
            }
            let before = left.len();
            let fault = match Running::start((self.start)(check, &left)) {
                Ok(running) => self.follow(check, &mut left, running),
                Err(e) => Some(Outcome::Failed(e.to_string())),
            };
            if let Some(outcome) = fault {
                let item = left.remove(0);
                self.find(check, item, outcome);
            } else if left.len() == before {
                // It ended well and told nothing.
                let item = left.remove(0);
                self.find(check, item, Outcome::Failed("its process told nothing".into()));
            }
        }
    }
    /// Follows a process to its end; what befell the first item that is left, if it did not end well.
    fn follow(&mut self, check: Check, left: &mut Vec<Item>, running: Running) -> Option<Outcome> {
        // Communicators of many members take seconds to make.
        let item = self.limits.item * if check == Check::Nccl { 2 } else { 1 };
        let mut limit = self.limits.start + item;
        while !left.is_empty() {
            match running.next(self.end.min(Instant::now() + limit)) {
                Ok(Line::End(finding)) => {
                    left.retain(|item| *item != finding.item);
                    self.findings.push(finding);
                    limit = item;
                }
                Ok(_) => limit = item,
                Err(RecvTimeoutError::Timeout) => {
                    running.stop();
                    return Some(if Instant::now() >= self.end { Outcome::NotChecked } else { Outcome::Hung });
                }
                Err(RecvTimeoutError::Disconnected) => return Some(Outcome::Failed(running.stop())),
            }
        }
        running.stop();
        None
    }
    fn find(&mut self, check: Check, item: Item, outcome: Outcome) {
        self.findings.push(Finding { check, item, outcome, measured: Measured::default() });
    }
}
