//! The table of GPU models that ships with the project.

use super::gpu::{FlopRate, Format, GpuModel};
use super::{Figure, Origin};
use std::sync::LazyLock;

/// The table as shipped: one model a row, provenance in its last columns.
pub const GPU_TABLE: &str = include_str!("../../data/gpus.csv");

/// All models of the table, in its order.
pub fn gpu_models() -> &'static [GpuModel] {
    static MODELS: LazyLock<Vec<GpuModel>> =
        LazyLock::new(|| parse(GPU_TABLE).unwrap_or_else(|error| panic!("the shipped GPU table is broken: {error}")));
    &MODELS
}

/// The model with this name.
pub fn gpu_named(name: &str) -> Option<&'static GpuModel> {
    gpu_models().iter().find(|model| model.name == name)
}

/// Splits a line of comma-separated values; a field in double quotes may hold commas.
fn fields(line: &str) -> Vec<String> {
    let mut out = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => out.push(String::new()),
            _ => out.last_mut().expect("starts with one field").push(c),
        }
    }
    out
}

/// A decimal number at the start of `text` (after an optional `~`), times `scale`, rounded to the nearest integer.
fn scaled(text: &str, scale: u64) -> Option<u64> {
    let digits: &str = text.trim_start_matches('~');
    let end = digits.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(digits.len());
    let (whole, fraction) = digits[..end].split_once('.').unwrap_or((&digits[..end], ""));
    let mut value = u128::from(whole.parse::<u64>().ok()?) * u128::from(scale);
    if !fraction.is_empty() {
        let unit = 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        value += (u128::from(fraction.parse::<u64>().ok()?) * u128::from(scale) + unit / 2) / unit;
    }
    u64::try_from(value).ok()
}

/// Reads the table.
///
/// # Errors
/// Names the row and the column that is missing or not a number.
fn parse(text: &str) -> Result<Vec<GpuModel>, String> {
    let mut lines = text.lines().filter(|line| !line.is_empty());
    let header = fields(lines.next().ok_or("it is empty")?);
    let mut out = Vec::new();
    for line in lines {
        let row = Row { header: &header, fields: fields(line) };
        out.push(row.model()?);
    }
    Ok(out)
}

struct Row<'a> {
    header: &'a [String],
    fields: Vec<String>,
}

impl Row<'_> {
    fn text(&self, column: &str) -> Result<&str, String> {
        let index = self.header.iter().position(|name| name == column).ok_or_else(|| format!("column {column} is missing"))?;
        self.fields.get(index).map(String::as_str).ok_or_else(|| format!("row {}: column {column} is missing", self.fields[0]))
    }
    fn number(&self, column: &str, scale: u64) -> Result<u64, String> {
        let text = self.text(column)?;
        scaled(text, scale).ok_or_else(|| format!("row {}: column {column}: `{text}` is not a number", self.fields[0]))
    }
    fn optional(&self, column: &str, scale: u64) -> Result<Option<u64>, String> {
        if self.text(column)?.is_empty() { Ok(None) } else { self.number(column, scale).map(Some) }
    }
    fn small(&self, column: &str) -> Result<u32, String> {
        u32::try_from(self.number(column, 1)?).map_err(|_| format!("row {}: column {column} is out of range", self.fields[0]))
    }
    fn model(&self) -> Result<GpuModel, String> {
        let source = self.text("source")?.to_owned();
        let figure = |value| Figure { value, origin: Origin::Spec, source: source.clone() };
        let reached = |value| Figure { value, origin: Origin::Measured, source: source.clone() };
        let capability = self.text("compute_capability")?.to_owned();
        let (major, minor) =
            capability.split_once('.').ok_or_else(|| format!("row {}: compute_capability `{capability}`", self.fields[0]))?;
        let part = |text: &str| text.parse::<u32>().map_err(|_| format!("row {}: compute_capability `{capability}`", self.fields[0]));
        const TERA: u64 = 1_000_000_000_000;
        const GIGA: u64 = 1_000_000_000;
        let columns = [
            (Format::Fp32, "fp32_tflops", ""),
            (Format::Bf16, "bf16_dense_tflops", "bf16_measured_tflops"),
            (Format::Fp8, "fp8_dense_tflops", "fp8_measured_tflops"),
            (Format::Fp4, "fp4_dense_tflops", "fp4_measured_tflops"),
            (Format::Int8, "int8_dense_tops", ""),
        ];
        let mut flops = Vec::new();
        for (format, peak, measured) in columns {
            let reached_per_s = if measured.is_empty() { None } else { self.optional(measured, TERA)?.map(reached) };
            if let Some(peak) = self.optional(peak, TERA)? {
                flops.push(FlopRate { format, peak_per_s: figure(peak), reached_per_s });
            }
        }
        Ok(GpuModel {
            name: self.text("gpu")?.to_owned(),
            chip: self.text("chip")?.to_owned(),
            sm_major: part(major)?,
            sm_minor: part(minor)?,
            sm_count: self.small("sm_count")?,
            memory_bytes: figure(self.number("memory_gib", 1 << 30)?),
            memory_bytes_per_s: figure(self.number("mem_bw_gbs_spec", GIGA)?),
            memory_reached_bytes_per_s: self.optional("mem_bw_gbs_measured", GIGA)?.map(reached),
            l2_bytes: self.number("l2_mib", 1 << 20)?,
            shared_memory_bytes_per_sm: self.number("smem_per_sm_kib", 1 << 10)?,
            boost_mhz: self.small("boost_mhz")?,
            flops,
            // A GB200 is attached by C2C, which its row says in words: no PCIe.
            pcie_gen: scaled(self.text("pcie_gen")?, 1).and_then(|gen_| u8::try_from(gen_).ok()).unwrap_or(0),
            pcie_lanes: scaled(self.text("pcie_lanes")?, 1).and_then(|lanes| u8::try_from(lanes).ok()).unwrap_or(0),
            nvlink_bytes_per_s: scaled(self.text("nvlink_gbs_per_direction")?, GIGA).unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_table_reads_to_the_byte() {
        let models = gpu_models();
        assert_eq!(models.len(), 38);
        let server = gpu_named("RTX PRO 6000 Blackwell Server Edition").expect("in the table");
        assert_eq!(server.sm(), 120);
        assert_eq!(server.sm_count, 188);
        assert_eq!(server.memory_bytes_per_s.value, 1_597_000_000_000);
        assert_eq!(server.reached_memory().value, 1_505_000_000_000);
        let bf16 = server.flops.iter().find(|rate| rate.format == Format::Bf16).unwrap();
        assert_eq!(bf16.reached_per_s.as_ref().map(|f| f.value), Some(425_000_000_000_000));
        assert_eq!(bf16.peak_per_s.value, 467_800_000_000_000);
        assert_eq!(server.memory_bytes.value, 102_649_718_374);
    }

    #[test]
    fn a_broken_row_is_named() {
        let broken = GPU_TABLE.replacen("188", "many", 1);
        assert_eq!(parse(&broken).unwrap_err(), "row RTX PRO 6000 Blackwell Server Edition: column sm_count: `many` is not a number");
    }

    #[test]
    fn decimals_scale_exactly() {
        assert_eq!(scaled("95.6", 1 << 30), Some(102_649_718_374));
        assert_eq!(scaled("~4400 (x)", 10), Some(44_000));
        assert_eq!(scaled("x", 1), None);
        assert_eq!(scaled("", 1), None);
    }
}
