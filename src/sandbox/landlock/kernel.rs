//! The system calls of Landlock.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus,
    PathBeneath, RestrictionStatus, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr,
    RulesetError, Scope,
};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

use super::Confinement;
use crate::sandbox::after::open_entry;

/// The newest version whose rules are written here; older ones hold less.
const NEWEST: ABI = ABI::V6;

/// Root gets its capabilities back with every program it starts, unless they are out of bounds. A normal
/// user has none, and may not do this.
pub(super) fn drop_capabilities() {
    for capability in CapabilitySet::all().iter() {
        let _ = remove_capability_from_bounding_set(capability);
    }
}

/// Says which version was there to do it; 0 is none.
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
        // Planned paths are free of links, so one on the way was put there meanwhile by a command of
        // another session, and must not decide what this one may write. What is gone stays closed, too.
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
