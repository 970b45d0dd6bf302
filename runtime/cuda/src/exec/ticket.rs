//! By what a rank finds a peer's memory, in whichever process that is.

use crate::wire::{Reader, Writer};
use std::ffi::c_char;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Where published memory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// The host, by what its kernel calls this boot; the process, by its id and the time of its first ticket, since containers may share ids.
    host: String,
    process: (u64, u64),
    /// The driver's context there, good in its own process only.
    pub context: u64,
    /// The driver's number of the GPU there.
    pub ordinal: u64,
    /// The address, good in its own process only.
    pub address: u64,
    /// The driver's handle for other processes of the host; empty where it gives none.
    pub handle: Vec<c_char>,
}

fn this_host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or_else(|_| String::new(), |id| id.trim().to_owned())
}

fn this_process() -> (u64, u64) {
    static FIRST: OnceLock<u64> = OnceLock::new();
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    (u64::from(std::process::id()), *FIRST.get_or_init(now))
}

impl Ticket {
    pub(crate) fn of_this_process(context: u64, ordinal: u64, address: u64, handle: Vec<c_char>) -> Self {
        Self { host: this_host(), process: this_process(), context, ordinal, address, handle }
    }
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.is_of_this_host() && self.process == this_process()
    }
    /// A host that does not say which boot it is counts as another one.
    pub(crate) fn is_of_this_host(&self) -> bool {
        !self.host.is_empty() && self.host == this_host()
    }
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.text(&self.host).number(self.process.0).number(self.process.1).number(self.context).number(self.ordinal);
        out.number(self.address).bytes(&self.handle.iter().map(|c| *c as u8).collect::<Vec<_>>());
        out.done()
    }
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader::new(bytes);
        let host = from.text()?;
        let process = (from.number()?, from.number()?);
        let (context, ordinal, address) = (from.number()?, from.number()?, from.number()?);
        let handle = from.bytes()?.iter().map(|b| *b as c_char).collect();
        Some(Self { host, process, context, ordinal, address, handle })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_survive_the_way_and_know_where_they_are_from() {
        let own = Ticket::of_this_process(3, 1, 1 << 40, vec![-1; 64]);
        assert_eq!(Ticket::decode(&own.encode()).as_ref(), Some(&own));
        assert!(own.is_of_this_process() && own.is_of_this_host());
        let process = Ticket { process: (own.process.0, own.process.1 + 1), ..own.clone() };
        assert!(!process.is_of_this_process() && process.is_of_this_host());
        let host = Ticket { host: "elsewhere".into(), ..own.clone() };
        assert!(!host.is_of_this_process() && !host.is_of_this_host());
        let bytes = own.encode();
        assert!((0..bytes.len()).all(|cut| Ticket::decode(&bytes[..cut]).is_none()));
    }
}
