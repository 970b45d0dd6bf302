//! The machine as directed links: paths between GPUs, and flows that share them.

mod route;
mod run;
mod share;

pub use route::{Access, Network, Route, RouteError};
pub use run::{RunError, Span, Transfer, TransferId, run};
pub use share::{Demand, max_min};
