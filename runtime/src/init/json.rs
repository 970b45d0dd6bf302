//! Plans as JSON files.

use super::check::{CheckedPlan, PlanError, PlanFault};
use super::fact::StepId;
use super::gate::Conditions;
use super::plan::{InitPlan, InitStep};
use crate::program::Group;
use moetwin_models::RankId;
use serde::Deserialize;
use serde_json::Value;

/// Version of the file format that this program writes and reads.
pub const PLAN_SCHEMA: u64 = 1;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    schema: u64,
    #[serde(default)]
    conditions: Conditions,
    #[serde(default)]
    groups: Vec<Group>,
    #[serde(default)]
    state: Vec<String>,
    ranks: Vec<Vec<Value>>,
}

impl InitPlan {
    /// The plan as a JSON document: `{"schema": 1, "conditions", "groups", "state", "ranks": [[step]]}`.
    pub fn to_json(&self) -> String {
        let mut value = serde_json::to_value(self).expect("plans have string keys only");
        if let Value::Object(fields) = &mut value {
            fields.insert("schema".to_owned(), PLAN_SCHEMA.into());
        }
        format!("{value:#}\n")
    }
}

impl CheckedPlan {
    /// Reads a plan from a JSON document and checks it.
    ///
    /// # Errors
    /// Text that is not JSON (with line and column), another schema, unknown fields, steps that do not parse (each named by rank,
    /// position and, where it has one, name), and everything that [`CheckedPlan::new`] finds.
    pub fn from_json(text: &str) -> Result<Self, PlanError> {
        let whole = |problem: String| PlanError { faults: vec![PlanFault { rank: None, step: None, problem }] };
        let file: File = serde_json::from_str(text).map_err(|error| whole(error.to_string()))?;
        if file.schema != PLAN_SCHEMA {
            return Err(whole(format!("schema {} is not the accepted {PLAN_SCHEMA}", file.schema)));
        }
        let mut faults = Vec::new();
        let mut plan =
            InitPlan { conditions: file.conditions, groups: file.groups.into_iter().collect(), state: file.state, ..InitPlan::default() };
        for (rank, list) in file.ranks.into_iter().enumerate() {
            let mut steps: Vec<InitStep> = Vec::with_capacity(list.len());
            for (position, value) in list.into_iter().enumerate() {
                let name = value.get("name").and_then(Value::as_str).unwrap_or("").to_owned();
                match InitStep::deserialize(value) {
                    Ok(step) => steps.push(step),
                    Err(error) => faults.push(PlanFault {
                        rank: Some(RankId(rank as u32)),
                        step: Some((StepId(position as u32), name)),
                        problem: error.to_string(),
                    }),
                }
            }
            plan.ranks.push(steps);
        }
        if faults.is_empty() { Self::new(plan) } else { Err(PlanError { faults }) }
    }
}
