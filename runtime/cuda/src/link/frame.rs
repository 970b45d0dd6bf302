//! Messages on the connection: a length, a kind, and what belongs to it.

use crate::exec::progress::Failed;
use crate::wire::{Reader, Writer};
use moetwin_models::RankId;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Longest message: results of a pass whose logits and hidden states are all kept.
const LONGEST: u64 = 1 << 32;

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// The sender is alive.
    Beat,
    /// One process's part of what is put together.
    Data { what: String, bytes: Vec<u8> },
    /// All parts.
    All { what: String, parts: Vec<Vec<u8>> },
    /// The sender is done and closes its connection.
    Bye,
    /// Somebody failed.
    Failed { with_peers: bool, failed: Failed },
}

impl Frame {
    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            Frame::Beat => {
                out.number(0);
            }
            Frame::Data { what, bytes } => {
                out.number(1).text(what).bytes(bytes);
            }
            Frame::All { what, parts } => {
                out.number(2).text(what).number(parts.len() as u64);
                for part in parts {
                    out.bytes(part);
                }
            }
            Frame::Bye => {
                out.number(4);
            }
            Frame::Failed { with_peers, failed } => {
                out.number(3).number(u64::from(*with_peers)).number(u64::from(failed.rank.0));
                out.text(&failed.phase).text(&failed.command).text(&failed.problem);
            }
        }
        out.done()
    }
    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader::new(bytes);
        let frame = match from.number()? {
            0 => Frame::Beat,
            1 => Frame::Data { what: from.text()?, bytes: from.bytes()?.to_vec() },
            2 => {
                let (what, count) = (from.text()?, from.number()?);
                let parts: Option<Vec<Vec<u8>>> = (0..count).map(|_| Some(from.bytes()?.to_vec())).collect();
                Frame::All { what, parts: parts? }
            }
            3 => {
                let (with_peers, rank) = (from.number()? != 0, RankId(u32::try_from(from.number()?).ok()?));
                Frame::Failed { with_peers, failed: Failed { rank, phase: from.text()?, command: from.text()?, problem: from.text()? } }
            }
            4 => Frame::Bye,
            _ => return None,
        };
        from.is_empty().then_some(frame)
    }
}

/// Writes a message whole.
pub(super) fn write_frame(to: &mut impl Write, frame: &Frame) -> std::io::Result<()> {
    let body = frame.encode();
    let mut bytes = (body.len() as u64).to_le_bytes().to_vec();
    bytes.extend(body);
    to.write_all(&bytes)
}

/// The first whole message of what has come, which is taken out; an error where it cannot be one.
fn take(buffer: &mut Vec<u8>) -> Result<Option<Frame>, ()> {
    let Some((length, rest)) = buffer.split_first_chunk::<8>() else { return Ok(None) };
    let length = u64::from_le_bytes(*length);
    if length > LONGEST {
        return Err(());
    }
    let Some(body) = rest.get(..length as usize) else { return Ok(None) };
    let frame = Frame::decode(body).ok_or(())?;
    buffer.drain(..8 + length as usize);
    Ok(Some(frame))
}

/// Hands over every message until the connection ends; returns how it ended, in words. `silence` without any message ends it too.
pub(super) fn read_frames(stream: &mut TcpStream, poll: Duration, silence: Duration, mut take_one: impl FnMut(Frame)) -> String {
    let (mut buffer, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
    let mut heard = Instant::now();
    if stream.set_read_timeout(Some(poll)).is_err() {
        return "its connection cannot be read".to_owned();
    }
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return "it ended (its connection closed)".to_owned(),
            Ok(n) => {
                heard = Instant::now();
                buffer.extend(&chunk[..n]);
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {
                if heard.elapsed() > silence {
                    return format!("it was not heard of for {} s", silence.as_secs());
                }
            }
            Err(e) => return format!("it ended ({e})"),
        }
        loop {
            match take(&mut buffer) {
                Ok(Some(frame)) => take_one(frame),
                Ok(None) => break,
                Err(()) => return "it sent what is no message".to_owned(),
            }
        }
    }
}

/// One message, read before anything else may come; nothing where none comes until `end`.
pub(super) fn read_one(stream: &mut TcpStream, end: Instant) -> Option<Frame> {
    let mut buffer = Vec::new();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1)))).ok()?;
        let mut byte = [0];
        // Byte by byte: what follows the message belongs to the next reader.
        match stream.read(&mut byte) {
            Ok(0) => return None,
            Ok(_) => buffer.push(byte[0]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
        if buffer.len() > 1 << 16 {
            return None;
        }
        match take(&mut buffer) {
            Ok(Some(frame)) => return Some(frame),
            Ok(None) => {}
            Err(()) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_and_nonsense_is_refused() {
        let failed = Failed { rank: RankId(3), phase: "connect".into(), command: "c".into(), problem: "p".into() };
        let frames = [
            Frame::Beat,
            Frame::Bye,
            Frame::Data { what: "x".into(), bytes: vec![1, 2, 3] },
            Frame::All { what: "y".into(), parts: vec![vec![], vec![9; 300]] },
            Frame::Failed { with_peers: true, failed },
        ];
        let mut bytes = Vec::new();
        frames.iter().for_each(|f| write_frame(&mut bytes, f).unwrap());
        let (mut buffer, mut got) = (Vec::new(), Vec::new());
        for byte in bytes {
            buffer.push(byte);
            got.extend(take(&mut buffer).unwrap());
        }
        assert_eq!(got, frames);
        assert_eq!(take(&mut vec![0xff; 9]), Err(()));
        let mut wrong = 8u64.to_le_bytes().to_vec();
        wrong.extend(77u64.to_le_bytes());
        assert_eq!(take(&mut wrong), Err(()));
    }
}
