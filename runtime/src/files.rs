//! Where a file that is written beside its place and then renamed really belongs.

use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

/// Links that are followed: as many as the kernel follows.
const MOST_LINKS: usize = 40;

/// The path that a rename may replace, links followed, so that a link stays one; `None` where something stands that is no file (a device, a
/// pipe): it is written into, never replaced.
///
/// # Errors
/// If links go in a circle, or what stands there cannot be looked at.
pub fn replaceable(path: &Path) -> Result<Option<PathBuf>> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let kind = match fs::symlink_metadata(&path) {
            Ok(metadata) => metadata.file_type(),
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Some(path)),
            Err(e) => return Err(e),
        };
        if !kind.is_symlink() {
            return Ok(kind.is_file().then_some(path));
        }
        let target = fs::read_link(&path)?;
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    Err(Error::other("too many links that point at links"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_followed_and_devices_are_left_alone() {
        let dir = std::env::temp_dir().join(format!("moetwin-files-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("file"), "x").unwrap();
        symlink("file", dir.join("link")).unwrap();
        symlink("nowhere", dir.join("dangling")).unwrap();
        symlink("circle", dir.join("circle")).unwrap();
        assert_eq!(replaceable(&dir.join("link")).unwrap(), Some(dir.join("file")));
        assert_eq!(replaceable(&dir.join("dangling")).unwrap(), Some(dir.join("nowhere")));
        assert_eq!(replaceable(&dir.join("new")).unwrap(), Some(dir.join("new")));
        assert_eq!(replaceable(Path::new("/dev/null")).unwrap(), None);
        assert!(replaceable(&dir.join("circle")).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
