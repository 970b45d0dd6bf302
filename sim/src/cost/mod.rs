//! What a command costs on a GPU: measured kernel times where tables have them, a roofline with floors elsewhere.

pub mod import;
pub mod table;
