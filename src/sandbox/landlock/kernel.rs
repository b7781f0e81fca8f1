//! Applies a Landlock ruleset to this process. Best effort by design: older kernels restrict less, and
//! which ABI version was in effect is returned, so that `doctor` can tell what is missing.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus,
    PathBeneath, RestrictionStatus, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr,
    RulesetError, Scope,
};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

use super::Confinement;
use crate::sandbox::repair::open_entry;

/// The newest ABI version whose access rights are used here.
const NEWEST: ABI = ABI::V6;

/// Empties the capability bounding set: root would otherwise regain all capabilities with the next
/// `exec`. For other users this fails, and they have none.
pub(super) fn drop_capabilities() {
    for capability in CapabilitySet::all().iter() {
        let _ = remove_capability_from_bounding_set(capability);
    }
}

/// Restricts this process for good and returns the ABI version in effect; 0 means no Landlock.
pub(super) fn restrict(confinement: &Confinement) -> Result<i32, String> {
    try_to_restrict(confinement).map_err(|error| error.to_string())
}

fn try_to_restrict(confinement: &Confinement) -> Result<i32, RulesetError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?;
    if !confinement.network {
        ruleset = ruleset.handle_access(AccessNet::from_all(NEWEST))?;
    }
    let mut created = ruleset.create()?;
    created = allow(created, &confinement.readable, AccessFs::from_read(NEWEST))?;
    created = allow(created, &confinement.writable, AccessFs::from_all(NEWEST))?;
    let RestrictionStatus { landlock, .. } = created.restrict_self()?;
    Ok(match landlock {
        LandlockStatus::Available { effective_abi, .. } => effective_abi as i32,
        LandlockStatus::NotEnabled | LandlockStatus::NotImplemented => 0,
    })
}

fn allow(
    mut ruleset: RulesetCreated,
    paths: &[PathBuf],
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    for path in paths {
        // Planned paths are canonical, so a symlink on the way was put there since by a command of
        // another session and must not decide what this one may write: the path stays closed, as does
        // one that is gone.
        let Ok(file) = open_entry(path) else { continue };
        let access =
            if is_directory(&file) { access } else { access & AccessFs::from_file(NEWEST) };
        ruleset = ruleset.add_rule(PathBeneath::new(file, access))?;
    }
    Ok(ruleset)
}

fn is_directory(opened: &OwnedFd) -> bool {
    let found = rustix::fs::fstat(opened);
    found.is_ok_and(|found| rustix::fs::FileType::from_raw_mode(found.st_mode).is_dir())
}
