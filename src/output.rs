//! The one place that writes: answers to standard output, notes to standard error, files whole or not at all.

use crate::error::{Failure, InputError};
use moetwin::runtime::files::replaceable;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Writes the answer to standard output, with a line end behind it.
pub(crate) fn answer(text: &str) -> Result<(), Failure> {
    piece(text)?;
    if text.ends_with('\n') { Ok(()) } else { piece("\n") }
}

/// Writes a part of the answer as it comes. A reader that closed the pipe has seen enough: that is no failure.
pub(crate) fn piece(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(Failure::Running(format!("standard output: {e}"))),
        _ => Ok(()),
    }
}

/// Writes one JSON object to standard output.
pub(crate) fn answer_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Failure::Running(format!("could not write JSON: {e}")))?;
    answer(&text)
}

/// Writes a line to standard error. There is nowhere left to report that this failed.
pub(crate) fn note(text: &str) {
    writeln!(io::stderr().lock(), "{text}").ok();
}

/// A count on standard error that is overwritten as it grows; nothing where nobody watches a terminal.
pub(crate) struct Progress {
    what: &'static str,
    total: usize,
    done: AtomicUsize,
    shown: bool,
}

impl Progress {
    /// Of `total` steps.
    pub(crate) fn new(what: &'static str, total: usize) -> Self {
        Self { what, total, done: AtomicUsize::new(0), shown: io::stderr().is_terminal() }
    }
    /// One step done.
    pub(crate) fn step(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if self.shown {
            let cells = done * 30 / self.total.max(1);
            write!(io::stderr().lock(), "\r{} [{:<30}] {done}/{}", self.what, "#".repeat(cells), self.total).ok();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            write!(io::stderr().lock(), "\r{:70}\r", "").ok();
        }
    }
}

/// A file that will appear under its name only once it is whole: written beside it, then renamed. A link is followed, and what is no file (a
/// device, a pipe) is written into.
pub(crate) struct NewFile {
    flag: &'static str,
    path: PathBuf,
    /// None where the path itself is written into.
    partial: Option<PathBuf>,
}

impl NewFile {
    /// The file that `flag` names. Whether it can be written is tried now, before the work whose result it will hold;
    /// nothing stays on disk until [`NewFile::commit`].
    pub(crate) fn plan(flag: &'static str, path: &Path) -> Result<Self, Failure> {
        let wrong = |message: String| Failure::from(InputError::new(flag, message).value(path.to_string_lossy()));
        if path == Path::new("-") {
            let error = InputError::new(flag, "is no file: standard output is where the answer goes").value("-");
            return Err(error.accepted(["a file's name, as ./- for one that is called so"]).into());
        }
        let name = path.file_name().ok_or_else(|| wrong("is not a file name".to_owned()))?;
        if path.is_dir() {
            return Err(wrong("is a folder; a file is written".to_owned()));
        }
        let Some(real) = replaceable(path).map_err(|e| wrong(format!("cannot be written: {e}")))? else {
            return Ok(Self { flag, path: path.to_owned(), partial: None });
        };
        let name = real.file_name().unwrap_or(name);
        let mut partial_name = name.to_owned();
        partial_name.push(format!(".{}.partial", std::process::id()));
        let partial = real.with_file_name(partial_name);
        File::create(&partial).and_then(|_| fs::remove_file(&partial)).map_err(|e| wrong(format!("cannot be written: {e}")))?;
        Ok(Self { flag, path: real, partial: Some(partial) })
    }
    /// Refuses two files that would be written to one place, of which the second would replace the first.
    pub(crate) fn distinct(files: &[Option<&NewFile>]) -> Result<(), Failure> {
        let planned: Vec<&NewFile> = files.iter().flatten().copied().filter(|f| f.partial.is_some()).collect();
        for (i, later) in planned.iter().enumerate() {
            if let Some(first) = planned[..i].iter().find(|f| f.place() == later.place()) {
                let message = format!("names the file that {} writes", first.flag);
                return Err(InputError::new(later.flag, message).value(later.path.to_string_lossy()).into());
            }
        }
        Ok(())
    }
    /// Refuses to replace a file that is read as `--flag FILE`.
    pub(crate) fn spares(&self, flag: &str, read: &Path) -> Result<(), Failure> {
        match (fs::canonicalize(&self.path), fs::canonicalize(read)) {
            (Ok(own), Ok(other)) if own == other && self.partial.is_some() => {
                let message = format!("names the file that {flag} reads");
                Err(InputError::new(self.flag, message).value(self.path.to_string_lossy()).into())
            }
            _ => Ok(()),
        }
    }
    /// Where the file will lie: its folder as it really is, and its name.
    fn place(&self) -> (PathBuf, Option<&std::ffi::OsStr>) {
        let folder = self.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        (fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned()), self.path.file_name())
    }
    /// Writes the whole content and gives the file its name.
    pub(crate) fn commit(self, content: &[u8]) -> Result<(), Failure> {
        let failed = |e: io::Error| Failure::Running(format!("{} {}: {e}", self.flag, self.path.display()));
        let Some(partial) = &self.partial else {
            return File::options().write(true).open(&self.path).and_then(|mut out| out.write_all(content)).map_err(failed);
        };
        let written = File::create(partial).and_then(|mut file| {
            file.write_all(content)?;
            file.sync_all()
        });
        written.and_then(|()| fs::rename(partial, &self.path)).map_err(|e| {
            fs::remove_file(partial).ok();
            failed(e)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let dir = std::env::temp_dir().join(format!("moetwin-output-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("trace.json");
        let planned = NewFile::plan("--trace", &path).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        planned.commit(b"whole").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        // A link stays one, and a device stays itself.
        std::os::unix::fs::symlink("trace.json", dir.join("link")).unwrap();
        NewFile::plan("--trace", &dir.join("link")).unwrap().commit(b"through").unwrap();
        assert!(fs::symlink_metadata(dir.join("link")).unwrap().is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"through");
        NewFile::plan("--trace", Path::new("/dev/null")).unwrap().commit(b"gone").unwrap();
        assert!(!fs::symlink_metadata("/dev/null").unwrap().is_file());
        let plan = |name: &str| NewFile::plan("--report", &dir.join(name)).unwrap();
        let (one, same, other) = (plan("a"), plan("./a"), plan("b"));
        assert!(NewFile::distinct(&[Some(&one), None, Some(&other)]).is_ok());
        assert!(matches!(NewFile::distinct(&[Some(&one), Some(&same)]), Err(Failure::Input(_))));
        assert!(plan("trace.json").spares("--measured", &dir.join("link")).is_err() && other.spares("--measured", &path).is_ok());
        for wrong in [dir.as_path(), Path::new(".."), Path::new("-"), &dir.join("no/such/folder/x")] {
            assert!(matches!(NewFile::plan("--trace", wrong), Err(Failure::Input(_))), "{}", wrong.display());
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
