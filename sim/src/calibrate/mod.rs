//! Fitting a machine's figures to measured tables of collectives: few physical parameters, one set for all tables, residuals kept.

mod fit;
mod generic;
mod knobs;
mod shipped;

pub use fit::{DEFENSIBLE_MEAN, DEFENSIBLE_TABLE, LeftOut, fit, leave_one_out};
pub use generic::generic;
pub use shipped::{ShippedTable, render_shipped, shipped_left_out};

use crate::collective::{Algorithm, CollectiveError, CollectiveOp, CollectiveRequest, Collectives, GraphMode, Launch, Library, Protocol};
use crate::import::nccl_tests::Measurement;
use crate::machine::Machine;
use crate::time::Duration;

/// A measured table and the request it answers, but for ranks and sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Where it is from: becomes the source of fitted figures.
    pub name: String,
    /// What is communicated.
    pub op: CollectiveOp,
    /// Whose implementation.
    pub library: Library,
    /// Launch mode of all rows; else each row's own, else a graph.
    pub launch: Option<Launch>,
    /// Ranks of rows that do not say.
    pub ranks: usize,
    /// Peer access as it was, if not the machine's.
    pub peer_access: Option<bool>,
    /// Forced algorithm.
    pub algorithm: Option<Algorithm>,
    /// Forced protocol.
    pub protocol: Option<Protocol>,
    /// NCCL's view.
    pub nccl_graph: GraphMode,
    /// The rows.
    pub rows: Vec<Measurement>,
}

/// Sizes that count: smaller ones are all launch, larger ones all link.
pub const SIZES: std::ops::RangeInclusive<u64> = 8 << 10..=128 << 20;

/// One row, measured and predicted.
#[derive(Clone, Debug, PartialEq)]
pub struct Residual {
    /// Index of the table.
    pub table: usize,
    /// Ranks.
    pub ranks: usize,
    /// Launch mode.
    pub launch: Launch,
    /// Size.
    pub bytes: u64,
    /// Measured time.
    pub measured: Duration,
    /// Predicted time.
    pub predicted: Duration,
    /// What was simulated.
    pub algorithm: Algorithm,
    /// What was simulated.
    pub protocol: Protocol,
}

impl Residual {
    /// `(predicted - measured) / measured`.
    pub fn error(&self) -> f64 {
        let measured = self.measured.as_seconds();
        (self.predicted.as_seconds() - measured) / measured
    }
}

/// Why a fit failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CalibrateError {
    /// No row is in the range of sizes.
    #[error("no row between {} and {} bytes", SIZES.start(), SIZES.end())]
    NoRows,
    /// A table asks for what the machine cannot do.
    #[error("{table}: {error}")]
    Predict {
        /// The table.
        table: String,
        /// Why not.
        error: CollectiveError,
    },
    /// The best fit is too far from the tables to be used.
    #[error("the best fit is {:.0} % off in the mean and {:.0} % for {worst} (defensible: {:.0} % and {:.0} %): the machine's topology is not what it is taken for, or this table is not of it", mean * 100.0, most * 100.0, DEFENSIBLE_MEAN * 100.0, DEFENSIBLE_TABLE * 100.0)]
    Indefensible {
        /// Mean error of the best fit over the tables.
        mean: f64,
        /// The table it is worst for.
        worst: String,
        /// The mean error of that table.
        most: f64,
    },
    /// One table cannot be predicted from the others.
    #[error("one table is given; to predict a table from the others takes at least two")]
    OneTable,
}

/// A fitted machine.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The machine with fitted figures, their origin measured and the tables their source.
    pub machine: Machine,
    /// Names of figures that the tables moved, with the factor.
    pub moved: Vec<(&'static str, f64)>,
    /// Every row.
    pub residuals: Vec<Residual>,
}

/// Predicts every row that counts.
///
/// # Errors
/// If a table asks for what the machine cannot do.
pub fn residuals(machine: &Machine, tables: &[Table]) -> Result<Vec<Residual>, CalibrateError> {
    let mut out = Vec::new();
    for (index, table) in tables.iter().enumerate() {
        let changed = table.peer_access.filter(|on| *on != machine.peer_access.value).map(|on| machine.clone().with_peer_access(on));
        let mut collectives = Collectives::without_explanations(changed.as_ref().unwrap_or(machine));
        for row in table.rows.iter().filter(|row| SIZES.contains(&row.bytes) && row.time > Duration::ZERO) {
            let ranks = row.ranks.unwrap_or(table.ranks);
            let mut request = CollectiveRequest::new(table.op, ranks, row.bytes);
            request.library = table.library;
            request.launch = table.launch.or(row.launch).unwrap_or(Launch::Graph);
            request.algorithm = table.algorithm;
            request.protocol = table.protocol;
            request.nccl_graph = table.nccl_graph;
            let prediction = collectives.predict(&request).map_err(|error| CalibrateError::Predict { table: table.name.clone(), error })?;
            out.push(Residual {
                table: index,
                ranks,
                launch: request.launch,
                bytes: row.bytes,
                measured: row.time,
                predicted: prediction.duration,
                algorithm: prediction.algorithm,
                protocol: prediction.protocol,
            });
        }
    }
    Ok(out)
}

/// Mean absolute relative error of each table; 0 for one without rows that count.
pub fn table_errors(residuals: &[Residual], tables: usize) -> Vec<f64> {
    let mut sums = vec![(0.0, 0u32); tables];
    for residual in residuals {
        let sum = &mut sums[residual.table];
        sum.0 += residual.error().abs();
        sum.1 += 1;
    }
    sums.into_iter().map(|(sum, count)| sum / f64::from(count.max(1))).collect()
}
