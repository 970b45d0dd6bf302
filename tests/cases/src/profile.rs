//! Profiles of other engines.

use crate::check_reason;
use moetwin_sim::profile::{Content, groups, read, summarize};

/// Any bytes as a profile: rejected with a reason, or kernels whose names and times mean something and whose step adds up.
pub fn check_profile(data: &[u8]) {
    let profile = match read(data) {
        Ok(profile) => profile,
        Err(e) => return check_reason(&e.to_string()),
    };
    let groups = groups(&profile);
    let named = |name: u32| assert!((name as usize) < profile.names.len(), "a kernel without a name");
    match &profile.content {
        Content::Timed(kernels) => {
            assert!(!kernels.is_empty() && groups.len() == kernels.len());
            assert!(kernels.windows(2).all(|w| (w[0].device, w[0].start_ps) <= (w[1].device, w[1].start_ps)), "kernels in order");
            kernels.iter().for_each(|k| named(k.name));
        }
        Content::Sums(sums) => {
            assert!(!sums.is_empty() && groups.len() == sums.len());
            sums.iter().for_each(|s| named(s.name));
        }
    }
    for (steps, layers) in [(None, 0), (None, 3), (Some(1), 1)] {
        let Some(step) = summarize(&profile, steps, layers) else { continue };
        assert!(step.steps > 0 && step.devices > 0);
        let calls: f64 = step.classes.iter().map(|c| c.calls).sum();
        assert!((calls - step.kernels).abs() <= 1e-6 * step.kernels.max(1.0), "{calls} of {} kernels have a class", step.kernels);
        if let (Some(whole), Some(busy)) = (step.step_us, step.busy_us) {
            assert!(busy <= whole * (1.0 + 1e-9) + 1e-6, "{busy} of {whole} us");
        }
    }
}
