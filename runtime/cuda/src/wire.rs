//! Numbers and byte strings as they travel between processes: little-endian, each byte string behind its length.

/// Puts a message together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    /// Appends a number.
    pub(crate) fn number(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    /// Appends bytes, with their count.
    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.number(value.len() as u64);
        self.0.extend(value);
        self
    }
    /// Appends a text.
    pub(crate) fn text(&mut self, value: &str) -> &mut Self {
        self.bytes(value.as_bytes())
    }
    /// The message.
    pub(crate) fn done(self) -> Vec<u8> {
        self.0
    }
}

/// Takes a message apart; nothing where it is too short.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads from the start.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
    /// Whether all was read.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// The next number.
    pub(crate) fn number(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*first))
    }
    /// The next bytes.
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let count = usize::try_from(self.number()?).ok()?;
        let (first, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(first)
    }
    /// The next text.
    pub(crate) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }
}
