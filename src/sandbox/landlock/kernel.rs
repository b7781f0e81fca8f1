//! The system calls of Landlock.

use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus,
    PathBeneath, PathFd, RestrictionStatus, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, Scope,
};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};

use super::Confinement;

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
        // What is gone meanwhile cannot be opened either.
        let Ok(file) = PathFd::new(path) else { continue };
        let access = if path.is_dir() { access } else { access & AccessFs::from_file(NEWEST) };
        ruleset = ruleset.add_rule(PathBeneath::new(file, access))?;
    }
    Ok(ruleset)
}
