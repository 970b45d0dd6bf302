//! What `nsys export --type sqlite` writes: a table of kernels, one of copies, one of fills, and one of all strings.

use super::kineto::unique;
use super::sqlite::{Cell, Database, Table};
use super::{Content, Kernel, MOST_KERNELS, Names, Profile, ProfileError, Source, of_ns, wrong};
use std::collections::BTreeMap;

const KERNELS: &str = "CUPTI_ACTIVITY_KIND_KERNEL";
/// Whole captured graphs, where nsys was not told to record their kernels.
const GRAPHS: &str = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE";
/// Kernel names, best first.
const NAMES: [&str; 3] = ["demangledName", "shortName", "name"];

fn column(table: &Table, name: &'static str, of: &str) -> Result<usize, ProfileError> {
    table.column(name).ok_or_else(|| wrong(of, format!("has no column {name}")))
}

pub(super) fn read(bytes: &[u8]) -> Result<Profile, ProfileError> {
    let database = Database::open(bytes)?;
    let Some(table) = database.table(KERNELS) else {
        return Err(match database.table(GRAPHS) {
            Some(_) => ProfileError::NoKernels("captured graphs are in it as wholes; record with --cuda-graph-trace=node"),
            None if database.table("StringIds").is_some() => ProfileError::NoKernels("record with --trace=cuda"),
            None => ProfileError::Unknown("a SQLite database, but not one that nsys exported"),
        });
    };
    let strings = strings(&database)?;
    let (mut names, mut kernels) = (Names::default(), Vec::new());
    let name =
        NAMES.into_iter().find_map(|n| table.column(n)).ok_or_else(|| wrong(KERNELS, "has no column demangledName, shortName or name"))?;
    read_table(&database, table, KERNELS, &mut kernels, |row| {
        let id = row.get(name).and_then(Cell::integer)?;
        Some(names.of(strings.get(&id).map_or("(unnamed)", String::as_str)))
    })?;
    for (other, said) in [("CUPTI_ACTIVITY_KIND_MEMCPY", "[CUDA memcpy]"), ("CUPTI_ACTIVITY_KIND_MEMSET", "[CUDA memset]")] {
        if let Some(table) = database.table(other) {
            let id = names.of(said);
            read_table(&database, table, other, &mut kernels, |_| Some(id))?;
        }
    }
    if kernels.is_empty() {
        return Err(ProfileError::NoKernels("the table of kernels is empty"));
    }
    let mut gpus = Vec::new();
    if let Some((table, name)) = database.table("TARGET_INFO_GPU").and_then(|t| Some((t, t.column("name")?))) {
        database.scan(table, |row| {
            gpus.extend(row.get(name).and_then(Cell::text).map(str::to_owned));
            Ok(())
        })?;
    }
    Ok(Profile { source: Source::NsysSqlite, gpus: unique(gpus), names: names.list(), content: Content::Timed(kernels) })
}

fn strings(database: &Database<'_>) -> Result<BTreeMap<i64, String>, ProfileError> {
    let mut out = BTreeMap::new();
    let table = database.table("StringIds").ok_or_else(|| wrong("StringIds", "is missing: kernels have no names"))?;
    let (id, value) = (column(table, "id", "StringIds")?, column(table, "value", "StringIds")?);
    database.scan(table, |row| {
        if let (Some(id), Some(value)) = (row.get(id).and_then(Cell::integer), row.get(value).and_then(Cell::text)) {
            out.insert(id, value.to_owned());
        }
        Ok(())
    })?;
    Ok(out)
}

fn read_table(
    database: &Database<'_>,
    table: &Table,
    called: &str,
    kernels: &mut Vec<Kernel>,
    mut name: impl FnMut(&[Cell]) -> Option<u32>,
) -> Result<(), ProfileError> {
    let (start, end) = (column(table, "start", called)?, column(table, "end", called)?);
    let (device, stream) = (table.column("deviceId"), table.column("streamId"));
    let mut number = 0u64;
    database.scan(table, |row| {
        number += 1;
        let at = |column: Option<usize>| column.and_then(|c| row.get(c)).and_then(Cell::integer);
        let place = || format!("{called}, row {number}");
        let times = at(Some(start)).and_then(of_ns).zip(at(Some(end)).and_then(of_ns)).filter(|(start, end)| start <= end);
        let (start_ps, end_ps) = times.ok_or_else(|| wrong(place(), "start and end are no times in nanoseconds, or in the wrong order"))?;
        if kernels.len() >= MOST_KERNELS {
            return Err(wrong(place(), format!("more than {MOST_KERNELS} kernels")));
        }
        kernels.push(Kernel {
            name: name(row).ok_or_else(|| wrong(place(), "has no name"))?,
            device: at(device).and_then(|d| u32::try_from(d).ok()).unwrap_or(0),
            stream: at(stream).and_then(|s| u64::try_from(s).ok()).unwrap_or(0),
            start_ps,
            duration_ps: end_ps - start_ps,
        });
        Ok(())
    })
}
