//! The CDI specification of each claim: a file with one device, which has what its containers must see.
//!
//! Invariant: a file is there from before the kubelet hears that its claim is prepared until no process of its pods is
//! left, also when it is deleted meanwhile: the kubelet may unprepare a claim that a pod still runs with. Files of
//! other programs are left alone.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use placement::names::aliyun;
use placement::units::ResourceClaimUid;
use serde_json::{Value, json};

use crate::container::cdi::{CdiError, VOID, bring_up_to_date};
use crate::container::{GPU_UUID, GPU_UUIDS, UNIT_MIB, VISIBLE_DEVICES};
use crate::records::resource_claims::{BookedClaim, ClaimLedger};

/// The files of claims.
#[derive(Debug)]
pub(crate) struct ClaimFiles {
    /// The folder of CDI specifications.
    pub folder: PathBuf,
    /// The kind of their devices.
    pub kind: String,
    /// The folder of MPS on the host.
    pub mps: Option<PathBuf>,
    /// Held while files are written: what is written last is what was booked last.
    pub writing: Mutex<()>,
}

impl ClaimFiles {
    /// The name of a claim's device, with its kind.
    pub(crate) fn device(&self, uid: &ResourceClaimUid) -> String {
        format!("{}={uid}", self.kind)
    }

    /// Writes the file of a claim unless it is up to date.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn write(
        &self,
        uid: &ResourceClaimUid,
        claim: &BookedClaim,
    ) -> Result<(), CdiError> {
        let _writing = self.writing();
        self.bring_up_to_date(uid, claim)
    }

    /// Writes the files of claims that are not up to date, and removes those of others. `claims` are looked up once no
    /// file is being written.
    ///
    /// # Errors
    /// If the folder cannot be read, or a file not be written.
    pub(crate) fn set(&self, claims: impl FnOnce() -> ClaimLedger) -> Result<(), CdiError> {
        let _writing = self.writing();
        let claims = claims();
        let mut wanted = BTreeSet::new();
        for (uid, claim) in claims.iter() {
            wanted.insert(self.file_name(uid));
            self.bring_up_to_date(uid, claim)?;
        }
        let failed = |cause: io::Error| CdiError::Write { path: self.folder.clone(), cause };
        let listed = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            listed => listed.map_err(failed)?,
        };
        let ours = self.file_prefix();
        for entry in listed {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(&ours) && !wanted.contains(&name) {
                fs::remove_file(entry.path()).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn bring_up_to_date(
        &self,
        uid: &ResourceClaimUid,
        claim: &BookedClaim,
    ) -> Result<(), CdiError> {
        bring_up_to_date(&self.path(uid), &self.spec(uid, claim).to_string())
    }

    fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, uid: &ResourceClaimUid) -> PathBuf {
        self.folder.join(self.file_name(uid))
    }

    fn file_name(&self, uid: &ResourceClaimUid) -> String {
        // A UID is the API server's, and has no slash; no text leaves the folder.
        format!("{}{}.json", self.file_prefix(), uid.as_str().replace('/', "-"))
    }

    fn file_prefix(&self) -> String {
        format!("{}-", self.kind.replace('/', "-"))
    }

    fn spec(&self, uid: &ResourceClaimUid, claim: &BookedClaim) -> Value {
        let mut gpus: Vec<&str> = Vec::new();
        for share in &claim.shares {
            if !gpus.contains(&share.gpu.as_str()) {
                gpus.push(share.gpu.as_str());
            }
        }
        let mut env = vec![format!("{VISIBLE_DEVICES}={VOID}")];
        env.extend(gpus.first().map(|first| format!("{GPU_UUID}={first}")));
        if gpus.len() > 1 {
            env.push(format!("{GPU_UUIDS}={}", gpus.join(",")));
        }
        let memory: u64 = claim.shares.iter().map(|share| share.memory.0).sum();
        env.push(format!("{UNIT_MIB}=1"));
        env.push(format!("{}={memory}", aliyun::CONTAINER));
        let mut edits = match claim.limit {
            Some(limit) => limit.device(self.mps.as_deref())["containerEdits"].take(),
            None => json!({}),
        };
        let of_limit = edits["env"].as_array().cloned().unwrap_or_default();
        edits["env"] = env.into_iter().map(Value::from).chain(of_limit).collect();
        let devices = json!([{ "name": uid.as_str(), "containerEdits": edits }]);
        json!({ "cdiVersion": "0.5.0", "kind": self.kind, "devices": devices })
    }
}

#[cfg(test)]
mod tests {
    use placement::units::MiB;

    use super::*;
    use crate::fixtures::{A, B, booked, share};
    use crate::isolation::limit::{Limit, MpsLimit};

    fn files(folder: &tempfile::TempDir) -> ClaimFiles {
        ClaimFiles {
            folder: folder.path().join("cdi"),
            kind: "gpu.plimsoll.dev/claim".to_owned(),
            mps: Some("/run/mps".into()),
            writing: Mutex::default(),
        }
    }

    fn claim(name: &str, gpus: &[&str], limit: Option<Limit>) -> BookedClaim {
        let shares: Vec<_> = gpus.iter().map(|gpu| share(gpu, 1024, 0)).collect();
        BookedClaim { limit, ..booked(name, &shares) }
    }

    fn ledger(claims: &[(&str, BookedClaim)]) -> ClaimLedger {
        let mut ledger = ClaimLedger::default();
        for (uid, claim) in claims {
            ledger.insert((*uid).into(), claim.clone());
        }
        ledger
    }

    #[test]
    fn the_device_of_a_claim_has_its_gpus_and_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(&folder);
        let mps = MpsLimit { gpus: 2, limit: MiB(1024), threads: 30 };
        files.write(&"u1".into(), &claim("u1", &[A, B, B], Some(Limit::Mps(mps)))).unwrap();
        assert_eq!(files.device(&"u1".into()), "gpu.plimsoll.dev/claim=u1");
        let path = folder.path().join("cdi/gpu.plimsoll.dev-claim-u1.json");
        let spec: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(
            (&spec["kind"], &spec["devices"][0]["name"]),
            (&json!(files.kind), &json!("u1"))
        );
        let edits = &spec["devices"][0]["containerEdits"];
        let env: Vec<&str> =
            edits["env"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let both = format!("PLIMSOLL_GPU_UUIDS={A},{B}");
        let first = format!("PLIMSOLL_GPU_UUID={A}");
        for expected in [
            "NVIDIA_VISIBLE_DEVICES=void",
            "PLIMSOLL_GPU_UNIT_MIB=1",
            "ALIYUN_COM_GPU_MEM_CONTAINER=3072",
            &first,
            &both,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30",
        ] {
            assert!(env.contains(&expected), "{expected}: {env:?}");
        }
        assert_eq!(edits["mounts"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn files_follow_the_claims_and_those_of_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(&folder);
        files.set(ClaimLedger::default).unwrap();
        let mut claims =
            ledger(&[("u1", claim("u1", &[A], None)), ("u2", claim("u2", &[B], None))]);
        files.set(|| claims.clone()).unwrap();
        fs::write(files.folder.join("nvidia.json"), "{}").unwrap();
        fs::remove_file(files.path(&"u1".into())).unwrap();
        claims.unprepare(&"u1".into());
        claims.unprepare(&"u2".into());
        claims.remove_ended(|pod| pod.as_str() == "pod-u1");
        files.set(|| claims.clone()).unwrap();
        let exists = |uid: &str| files.path(&uid.into()).exists();
        assert_eq!((exists("u1"), exists("u2")), (true, false));
        assert!(files.folder.join("nvidia.json").exists());
    }
}
