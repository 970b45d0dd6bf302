//! What launchers tell the processes they start: which rank each is, of how many, and where rank 0 can be reached.

use std::fmt;

/// A process's place among the processes of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// This process's rank.
    pub rank: u32,
    /// Processes in all.
    pub size: u32,
    /// This process's number among those of its host, which is its GPU.
    pub local_rank: u32,
    /// Host name or address of rank 0.
    pub address: String,
    /// Port that rank 0 listens on.
    pub port: u16,
    /// Whose variables said so.
    pub convention: Convention,
}

/// Whose variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Convention {
    /// `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT`, as torchrun sets them.
    Torch,
    /// `SLURM_PROCID`, `SLURM_NTASKS`, `SLURM_LOCALID` and the node list, as srun sets them.
    Slurm,
}

/// A variable that is missing or wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LauncherError {
    /// The variable.
    pub variable: &'static str,
    /// Its value, where it has one.
    pub value: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub accepted: String,
}

impl fmt::Display for LauncherError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(v) => write!(f, "{}={v}: {}; accepted: {}", self.variable, self.message, self.accepted),
            None => write!(f, "{}: {}; accepted: {}", self.variable, self.message, self.accepted),
        }
    }
}

impl std::error::Error for LauncherError {}

/// Variables of torchrun's convention.
const TORCH: [&str; 5] = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"];
/// Most processes that a run can have, the same as flags allow ranks.
const MOST: u32 = 4096;

impl Launcher {
    /// Reads the variables. Nothing where no launcher has set any; torchrun's win where both are set, since torchrun runs inside Slurm jobs.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, LauncherError> {
        let get = |name: &'static str| get(name).filter(|v| !v.trim().is_empty()).map(|v| v.trim().to_owned());
        let launcher = if ["RANK", "WORLD_SIZE"].iter().any(|v| get(v).is_some()) {
            Self::torch(&get)?
        } else if get("SLURM_PROCID").is_some() && ["SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NODELIST"].iter().any(|v| get(v).is_some())
        {
            // A batch script has SLURM_PROCID too, but only srun starts steps.
            Self::slurm(&get)?
        } else {
            return Ok(None);
        };
        let (rank, size, local) = (launcher.rank, launcher.size, launcher.local_rank);
        let (rank_name, local_name) = match launcher.convention {
            Convention::Torch => ("RANK", "LOCAL_RANK"),
            Convention::Slurm => ("SLURM_PROCID", "SLURM_LOCALID"),
        };
        let over = |variable, value: u32| LauncherError {
            variable,
            value: Some(value.to_string()),
            message: format!("there are {size} processes, counted from 0"),
            accepted: format!("0 to {}", size - 1),
        };
        if rank >= size {
            return Err(over(rank_name, rank));
        }
        if local > rank {
            // Ranks of a host are consecutive in both conventions' usual layouts, and at least never fewer than those before.
            return Err(LauncherError {
                accepted: format!("0 to {rank}"),
                message: format!("exceeds rank {rank}"),
                ..over(local_name, local)
            });
        }
        Ok(Some(launcher))
    }
    /// `address:port`.
    pub fn place(&self) -> String {
        format!("{}:{}", self.address, self.port)
    }

    fn torch(get: &impl Fn(&'static str) -> Option<String>) -> Result<Self, LauncherError> {
        let all = TORCH.join(", ");
        let needed = |name: &'static str| {
            get(name).ok_or_else(|| {
                let set: Vec<&str> = TORCH.into_iter().filter(|v| get(v).is_some()).collect();
                let message = format!("is not set, and {} {}", set.join(", "), if set.len() == 1 { "is" } else { "are" });
                LauncherError { variable: name, value: None, message, accepted: format!("all of {all}, as torchrun sets them, or none") }
            })
        };
        let rank = number("RANK", &needed("RANK")?, 0, MOST - 1)?;
        let size = number("WORLD_SIZE", &needed("WORLD_SIZE")?, 1, MOST)?;
        let local_rank = number("LOCAL_RANK", &needed("LOCAL_RANK")?, 0, MOST - 1)?;
        let address = needed("MASTER_ADDR")?;
        let port = number("MASTER_PORT", &needed("MASTER_PORT")?, 1, 65_535)? as u16;
        // torchrun's agent keeps MASTER_PORT itself then (its store), so the processes meet beside it.
        let taken = get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|v| v.eq_ignore_ascii_case("true"));
        let port = match (taken, port) {
            (false, p) => p,
            (true, 65_535) => 65_534,
            (true, p) => p + 1,
        };
        Ok(Self { rank, size, local_rank, address, port, convention: Convention::Torch })
    }

    fn slurm(get: &impl Fn(&'static str) -> Option<String>) -> Result<Self, LauncherError> {
        let missing = |variable: &'static str| LauncherError {
            variable,
            value: None,
            message: "is not set, and SLURM_PROCID is".to_owned(),
            accepted: "SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID and SLURM_STEP_NODELIST, as srun sets them".to_owned(),
        };
        let needed = |name: &'static str| get(name).ok_or_else(|| missing(name));
        let rank = number("SLURM_PROCID", &needed("SLURM_PROCID")?, 0, MOST - 1)?;
        let size = match get("SLURM_STEP_NUM_TASKS") {
            Some(n) => number("SLURM_STEP_NUM_TASKS", &n, 1, MOST)?,
            None => number("SLURM_NTASKS", &needed("SLURM_NTASKS")?, 1, MOST)?,
        };
        let local_rank = number("SLURM_LOCALID", &needed("SLURM_LOCALID")?, 0, MOST - 1)?;
        let nodes = ["SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"];
        let address = match get("MASTER_ADDR") {
            Some(a) => a,
            None => {
                let (name, list) = nodes.iter().find_map(|n| Some((*n, get(n)?))).ok_or_else(|| missing(nodes[0]))?;
                first_host(&list).ok_or_else(|| LauncherError {
                    variable: name,
                    value: Some(list),
                    message: "is no list of hosts".to_owned(),
                    accepted: "such as node7 or node[03-05,9]".to_owned(),
                })?
            }
        };
        let port = match get("MASTER_PORT") {
            Some(p) => number("MASTER_PORT", &p, 1, 65_535)? as u16,
            // Jobs that share a host must not meet: the number decides, from the top of the dynamic ports (IANA: 49152 to 65535).
            None => {
                let job = get("SLURM_JOB_ID").and_then(|j| j.parse::<u64>().ok()).unwrap_or(0);
                61_440 + (job % 4_095) as u16
            }
        };
        Ok(Self { rank, size, local_rank, address, port, convention: Convention::Slurm })
    }
}

fn number(variable: &'static str, text: &str, least: u32, most: u32) -> Result<u32, LauncherError> {
    text.parse::<u32>().ok().filter(|n| (least..=most).contains(n)).ok_or_else(|| LauncherError {
        variable,
        value: Some(text.to_owned()),
        message: "is not such a number".to_owned(),
        accepted: format!("{least} to {most}"),
    })
}

/// The first host of a Slurm host list: `gpu[03-05,9],login` is `gpu03`.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list;
    while let Some(stop) = rest.find([',', '[']) {
        host.push_str(&rest[..stop]);
        if rest[stop..].starts_with(',') {
            rest = "";
            break;
        }
        let (inside, after) = rest[stop + 1..].split_once(']')?;
        host.push_str(inside.split([',', '-']).next()?);
        rest = after;
    }
    host.push_str(rest);
    let good = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
    good.then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Launcher>, LauncherError> {
        Launcher::read(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    const RUN: [(&str, &str); 5] =
        [("RANK", "3"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "10.0.0.7"), ("MASTER_PORT", "29500")];

    #[test]
    fn torchrun_sets_all_five() {
        let got = read(&RUN).unwrap().unwrap();
        assert_eq!((got.rank, got.size, got.local_rank, got.place().as_str()), (3, 8, 1, "10.0.0.7:29500"));
        let agent = [&RUN[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
        assert_eq!(read(&agent).unwrap().unwrap().port, 29_501);
        for missing in RUN {
            let four: Vec<_> = RUN.into_iter().filter(|v| *v != missing).collect();
            let e = read(&four).unwrap_err();
            assert_eq!((e.variable, e.value.as_deref()), (missing.0, None), "{e}");
        }
        for (at, wrong) in [(0, "8"), (0, "-1"), (0, "x"), (1, "0"), (1, "3"), (2, "4"), (2, ""), (4, "0"), (4, "65536")] {
            let mut changed = RUN;
            changed[at].1 = wrong;
            let e = read(&changed).unwrap_err();
            assert!(!e.accepted.is_empty() && e.to_string().contains(e.variable), "{e}");
        }
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[("MASTER_ADDR", "a"), ("LOCAL_RANK", "0")]), Ok(None));
    }

    #[test]
    fn srun_sets_its_own_and_a_batch_script_is_no_step() {
        let step = [
            ("SLURM_PROCID", "5"),
            ("SLURM_NTASKS", "16"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_STEP_NODELIST", "gpu[03-05,9],login"),
            ("SLURM_JOB_ID", "4096"),
        ];
        let got = read(&step).unwrap().unwrap();
        assert_eq!((got.rank, got.size, got.local_rank, got.place().as_str()), (5, 16, 1, "gpu03:61441"));
        assert_eq!(read(&[&step[..3], &[("SLURM_JOB_NODELIST", "n1")]].concat()), Ok(None));
        let both = [&step[..], &RUN].concat();
        assert_eq!(read(&both).unwrap().unwrap().convention, Convention::Torch);
        assert_eq!(read(&[step[0], step[2], step[3]]).unwrap_err().variable, "SLURM_NTASKS");
        assert_eq!(read(&[step[0], step[1], step[3]]).unwrap_err().variable, "SLURM_LOCALID");
    }

    #[test]
    fn host_lists() {
        for (list, first) in
            [("a", "a"), ("a,b", "a"), ("n[7]", "n7"), ("n[01-08]", "n01"), ("r[1-2]c[3,4].x,y", "r1c3.x"), ("h-1.dom,z", "h-1.dom")]
        {
            assert_eq!(first_host(list).as_deref(), Some(first));
        }
        for wrong in ["", ",a", "n[", "n[1", "a b", "[]"] {
            assert_eq!(first_host(wrong), None, "{wrong}");
        }
    }
}
