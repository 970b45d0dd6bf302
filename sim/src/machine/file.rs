//! Machine files: JSON with `"schema": 1`, every figure with its origin and source, units in the field names.

use super::{CollectiveFigures, Defect, Figure, GpuModel, LaunchCosts, Link, LinkKind, Machine, Rate, Slot, Vertex, VertexId, check};
use crate::cost::OwnKernels;
use crate::time::Duration;
use moetwin_models::IdVec;
use moetwin_models::ids::Id;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Longest file read: a machine of a thousand GPUs is a tenth of it.
const MOST_BYTES: usize = 32 << 20;
/// Most GPUs, vertices and links.
const MOST_GPUS: usize = 1024;
const MOST_VERTICES: usize = 16_384;
const MOST_LINKS: usize = 65_536;

/// Why a machine file was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// The text is not the JSON of a machine: where, and what would have been accepted.
    #[error("line {line}, column {column}: {message}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong.
        message: String,
    },
    /// The JSON contradicts itself: the path of the value, and what is wrong with it.
    #[error("{path}: {message}")]
    Value {
        /// Path of the value, for example `links[3].a`.
        path: String,
        /// What is wrong.
        message: String,
    },
}

impl FileError {
    pub(super) fn value(path: impl Into<String>, message: impl Into<String>) -> Self {
        FileError::Value { path: path.into(), message: message.into() }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineFile {
    schema: u32,
    name: String,
    summary: String,
    assumptions: Vec<String>,
    gpu_models: Vec<GpuModel>,
    gpus: Vec<GpuFile>,
    vertices: Vec<Vertex>,
    links: Vec<LinkFile>,
    defects: Vec<DefectFile>,
    peer_access: Figure<bool>,
    launch: LaunchCosts,
    collectives: CollectiveFigures,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kernels: Option<OwnKernels>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuFile {
    model: String,
    vertex: String,
    numa: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkFile {
    a: String,
    b: String,
    medium: LinkKind,
    forward: Rate,
    backward: Rate,
    latency_ps: Figure<Duration>,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
enum DefectFile {
    PostedWriteCollapse { switch: String, bytes_per_s: Figure<u64> },
}

/// Reads and checks a machine file.
///
/// # Errors
/// Names the line and column of what is not JSON or not a machine's, or the path of a value that contradicts the rest.
pub fn from_json(text: &str) -> Result<Machine, FileError> {
    if text.len() > MOST_BYTES {
        return Err(FileError::value("the file", format!("{} bytes; at most {MOST_BYTES} are read", text.len())));
    }
    // The version first: a later one may differ anywhere.
    #[derive(Deserialize)]
    struct Schema {
        schema: u32,
    }
    let syntax = |error: serde_json::Error| FileError::Syntax { line: error.line(), column: error.column(), message: words(&error) };
    let Schema { schema } = serde_json::from_str(text).map_err(syntax)?;
    if schema != 1 {
        return Err(FileError::value("schema", format!("{schema} is not known; accepted: 1")));
    }
    let file: MachineFile = serde_json::from_str(text).map_err(syntax)?;
    let machine = file.into_machine()?;
    check(&machine)?;
    Ok(machine)
}

/// The message of a JSON error without its position, which is reported apart.
fn words(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

fn bounded(path: &str, count: usize, most: usize) -> Result<(), FileError> {
    if count > most { Err(FileError::value(path, format!("{count} entries; at most {most} are read"))) } else { Ok(()) }
}

impl MachineFile {
    fn into_machine(self) -> Result<Machine, FileError> {
        bounded("gpus", self.gpus.len(), MOST_GPUS)?;
        bounded("vertices", self.vertices.len(), MOST_VERTICES)?;
        bounded("links", self.links.len(), MOST_LINKS)?;
        let mut ids: BTreeMap<String, VertexId> = BTreeMap::new();
        for (index, vertex) in self.vertices.iter().enumerate() {
            if ids.insert(vertex.name.clone(), VertexId::from_index(index)).is_some() {
                return Err(FileError::value(format!("vertices[{index}].name"), format!("`{}` is used twice", vertex.name)));
            }
        }
        let vertex = |path: String, name: &str| {
            ids.get(name).copied().ok_or_else(|| FileError::value(path, format!("there is no vertex named `{name}`")))
        };
        let mut gpus = Vec::with_capacity(self.gpus.len());
        for (index, gpu) in self.gpus.iter().enumerate() {
            let model = self.gpu_models.iter().position(|model| model.name == gpu.model).ok_or_else(|| {
                let names: Vec<&str> = self.gpu_models.iter().map(|model| model.name.as_str()).collect();
                FileError::value(
                    format!("gpus[{index}].model"),
                    format!("`{}` is not in gpu_models; accepted: {}", gpu.model, names.join(", ")),
                )
            })?;
            gpus.push(Slot { model, vertex: vertex(format!("gpus[{index}].vertex"), &gpu.vertex)?, numa: gpu.numa });
        }
        let mut links = IdVec::new();
        for (index, link) in self.links.into_iter().enumerate() {
            links.push(Link {
                a: vertex(format!("links[{index}].a"), &link.a)?,
                b: vertex(format!("links[{index}].b"), &link.b)?,
                kind: link.medium,
                forward: link.forward,
                backward: link.backward,
                latency: link.latency_ps,
            });
        }
        let mut defects = Vec::new();
        for (index, DefectFile::PostedWriteCollapse { switch, bytes_per_s }) in self.defects.into_iter().enumerate() {
            let switch = vertex(format!("defects[{index}].switch"), &switch)?;
            defects.push(Defect::PostedWriteCollapse { switch, bytes_per_s });
        }
        Ok(Machine {
            name: self.name,
            summary: self.summary,
            models: self.gpu_models,
            gpus,
            vertices: self.vertices.into_iter().collect(),
            links,
            defects,
            peer_access: self.peer_access,
            launch: self.launch,
            collectives: self.collectives,
            assumptions: self.assumptions,
            kernels: self.kernels,
        })
    }
}

impl Machine {
    /// The machine as a file that [`from_json`] reads back to an equal machine.
    pub fn to_json(&self) -> String {
        let name = |id: VertexId| self.vertices[id].name.clone();
        let file = MachineFile {
            schema: 1,
            name: self.name.clone(),
            summary: self.summary.clone(),
            assumptions: self.assumptions.clone(),
            gpu_models: self.models.clone(),
            gpus: self
                .gpus
                .iter()
                .map(|slot| GpuFile { model: self.models[slot.model].name.clone(), vertex: name(slot.vertex), numa: slot.numa })
                .collect(),
            vertices: self.vertices.as_slice().to_vec(),
            links: self
                .links
                .iter()
                .map(|(_, link)| LinkFile {
                    a: name(link.a),
                    b: name(link.b),
                    medium: link.kind,
                    forward: link.forward.clone(),
                    backward: link.backward.clone(),
                    latency_ps: link.latency.clone(),
                })
                .collect(),
            defects: self
                .defects
                .iter()
                .map(|Defect::PostedWriteCollapse { switch, bytes_per_s }| DefectFile::PostedWriteCollapse {
                    switch: name(*switch),
                    bytes_per_s: bytes_per_s.clone(),
                })
                .collect(),
            peer_access: self.peer_access.clone(),
            launch: self.launch.clone(),
            collectives: self.collectives.clone(),
            kernels: self.kernels.clone(),
        };
        let mut text = serde_json::to_string_pretty(&file).expect("a machine holds strings and integers only");
        text.push('\n');
        text
    }
}
