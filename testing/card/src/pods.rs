//! Owns pods with the program `card-client`: what they are made of, what they say, and the processes that they are.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use e2e::command::wait_for;
use e2e::kernel::processes::{self, Pid};
use serde_json::{Value, json};

use crate::lab::Lab;
use crate::parts::CLIENT_IMAGE;

/// Where the tests' pods are.
const PODS: &str = "/api/v1/namespaces/default/pods";
/// The resource of GPU memory in units.
const UNITS: &str = "aliyun.com/gpu-mem";
/// The annotation that asks for isolation.
pub(crate) const ISOLATION: &str = "plimsoll.dev/gpu-isolation";
/// The annotation of a claim.
const CLAIM: &str = "plimsoll.dev/gpu-claim";
/// Within this kube-scheduler says why a pod waits. For 40 s it may be told that memory is free in seconds, and tries
/// again after 10 s.
const REFUSED: Duration = Duration::from_secs(90);
/// How long the end of pods may take.
const END: Duration = Duration::from_secs(60);

/// A pod that is to be created.
#[derive(Debug, Clone)]
pub(crate) struct Pod(pub(crate) Value);

/// A pod of these units whose program gets these words. It is killed a second after its deletion.
pub(crate) fn pod(name: impl Into<String>, units: u64, words: &str) -> Pod {
    let limits = json!({UNITS: units.to_string()});
    Pod(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name.into(), "annotations": {}},
        "spec": {
            "hostNetwork": true, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}], "securityContext": {},
            "containers": [{
                "name": "c", "image": CLIENT_IMAGE, "imagePullPolicy": "Never",
                "args": words.split(' ').collect::<Vec<_>>(), "env": [],
                "resources": {"requests": {"cpu": "5m"}, "limits": limits},
            }],
        },
    }))
}

impl Pod {
    /// As a client of MPS.
    pub(crate) fn mps(mut self) -> Self {
        self.0["metadata"]["annotations"][ISOLATION] = json!("mps");
        self
    }

    /// With a claim of this template in place of units.
    pub(crate) fn with_claim(mut self, template: &str) -> Self {
        let spec = &mut self.0["spec"];
        spec["resourceClaims"] = json!([{"name": "gpu", "resourceClaimTemplateName": template}]);
        spec["containers"][0]["resources"] = json!({"claims": [{"name": "gpu"}]});
        self
    }

    /// With this percentage of the compute.
    pub(crate) fn cores(mut self, percent: u64) -> Self {
        self.0["metadata"]["annotations"]["plimsoll.dev/gpu-cores"] = json!(percent.to_string());
        self
    }

    pub(crate) fn user(mut self, user: u32) -> Self {
        self.0["spec"]["securityContext"]["runAsUser"] = json!(user);
        self
    }

    /// With this grace period, in seconds.
    pub(crate) fn grace(mut self, seconds: u32) -> Self {
        self.0["spec"]["terminationGracePeriodSeconds"] = json!(seconds);
        self
    }

    fn name(&self) -> &str {
        self.0["metadata"]["name"].as_str().unwrap_or_default()
    }
}

impl Lab {
    pub(crate) fn create(&self, pod: &Pod) -> Result<()> {
        let mut object = pod.0.clone();
        if self.gpu.fake {
            let variable = json!({"name": "CARD_FAKE", "value": "1"});
            let variables = object["spec"]["containers"][0]["env"].as_array_mut();
            variables.into_iter().for_each(|env| env.push(variable.clone()));
        }
        self.node.call("POST", PODS, Some(&object)).map(drop)
    }

    /// Creates a pod and waits until it runs. Returns how long that took.
    pub(crate) fn start_pod(&self, pod: &Pod) -> Result<Duration> {
        let begin = Instant::now();
        self.create(pod)?;
        self.until_running(pod.name())?;
        Ok(begin.elapsed())
    }

    pub(crate) fn until_running(&self, name: &str) -> Result<()> {
        wait_for(&format!("pod {name} to run"), Duration::from_secs(60), || {
            match self.phase(name)?.as_str() {
                "Running" | "Succeeded" => Ok(Some(())),
                _ => bail!("{}", self.why(name)?),
            }
        })
    }

    pub(crate) fn get(&self, name: &str) -> Result<Value> {
        self.node.call("GET", &format!("{PODS}/{name}"), None)
    }

    pub(crate) fn phase(&self, name: &str) -> Result<String> {
        Ok(self.get(name)?["status"]["phase"].as_str().unwrap_or_default().to_owned())
    }

    /// Why the pod does not run: what kube-scheduler, or its container, says.
    pub(crate) fn why(&self, name: &str) -> Result<String> {
        let status = self.get(name)?["status"].take();
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let waits = conditions
            .filter(|it| it["type"] == "PodScheduled")
            .find_map(|it| it["message"].as_str());
        let container = &status["containerStatuses"][0]["state"];
        let refusal = status["message"].as_str();
        Ok(waits.or(refusal).map_or_else(|| container.to_string(), str::to_owned))
    }

    /// Waits until kube-scheduler says why the pod waits. An error where it gets a node meanwhile.
    pub(crate) fn until_refused(&self, name: &str) -> Result<String> {
        wait_for(&format!("a reason why pod {name} waits"), REFUSED, || {
            let object = self.get(name)?;
            let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
            let mut of_scheduler = conditions.filter(|it| it["type"] == "PodScheduled");
            let reason = of_scheduler.find(|it| it["reason"] == "Unschedulable");
            Ok(match reason {
                Some(reason) => Some(Ok(reason["message"].as_str().unwrap_or_default().to_owned())),
                None if !object["spec"]["nodeName"].is_null() => {
                    Some(Err(anyhow::anyhow!("pod {name} got the node, though it does not fit")))
                }
                None => None,
            })
        })?
    }

    /// The pod's GPUs and units by its claim's text.
    pub(crate) fn claim(&self, name: &str) -> Result<String> {
        let claim = self.get(name)?["metadata"]["annotations"][CLAIM].take();
        Ok(claim.as_str().with_context(|| format!("pod {name} has no claim"))?.to_owned())
    }

    pub(crate) fn delete(&self, name: &str) -> Result<()> {
        self.node.call("DELETE", &format!("{PODS}/{name}"), None).map(drop)
    }

    /// As `kubectl delete --force --grace-period=0`.
    pub(crate) fn delete_by_force(&self, name: &str) -> Result<()> {
        let path = format!("{PODS}/{name}?gracePeriodSeconds=0");
        self.node.call("DELETE", &path, None).map(drop)
    }

    /// Deletes all pods, and waits for the end of their objects and processes.
    pub(crate) fn clear(&self) -> Result<()> {
        let mut uids = Vec::new();
        for object in self.pods()? {
            uids.push(object["metadata"]["uid"].as_str().unwrap_or_default().to_owned());
            self.delete(object["metadata"]["name"].as_str().unwrap_or_default()).ok();
        }
        wait_for("the pods to end", END, || {
            let objects = self.pods()?;
            let left = uids.iter().filter_map(|uid| processes::of_container(uid).ok()).flatten();
            Ok((objects.is_empty() && left.count() == 0).then_some(()))
        })?;
        self.tell_driver(None)
    }

    pub(crate) fn pods(&self) -> Result<Vec<Value>> {
        let listed = self.node.call("GET", PODS, None)?;
        Ok(listed["items"].as_array().cloned().unwrap_or_default())
    }

    /// The process of the pod's program, by its number on this machine.
    pub(crate) fn pid(&self, name: &str) -> Result<Pid> {
        program_of(&self.get(name)?)
    }

    /// Waits for the first line of the pod's program that has this key. An error where it says another error.
    pub(crate) fn said(&self, name: &str, key: &str, limit: Duration) -> Result<Value> {
        let found = wait_for(&format!("pod {name} to say {key}"), limit, || {
            let lines = self.lines(name)?;
            let found = lines.iter().find(|line| line[key] != Value::Null);
            let error = lines.iter().find(|line| !line["error"].is_null());
            Ok(found.or(error).cloned())
        });
        let found = found.with_context(|| self.why(name).unwrap_or_default())?;
        ensure!(!found[key].is_null(), "the program of pod {name}: {}", found["error"]);
        Ok(found)
    }

    /// What the pod's program has said: lines of JSON.
    pub(crate) fn lines(&self, name: &str) -> Result<Vec<Value>> {
        let uid = self.get(name)?["metadata"]["uid"].take();
        let uid = uid.as_str().unwrap_or_default();
        let log = self.work.join(format!("pod-logs/default_{name}_{uid}/c/0.log"));
        Ok(fs::read_to_string(log).unwrap_or_default().lines().filter_map(said_in).collect())
    }
}

/// The process of a pod's program.
pub(crate) fn program_of(object: &Value) -> Result<Pid> {
    let uid = object["metadata"]["uid"].as_str().context("a pod without a UID")?;
    let found = processes::of_container(uid)?;
    let program = found.into_iter().find(|pid| {
        let words = processes::arguments(*pid);
        words.first().is_some_and(|word| Path::new(word).ends_with("card-client"))
    });
    program.with_context(|| format!("pod {} has no process", object["metadata"]["name"]))
}

/// What a pod's program was told to take, in MiB, and whether it was told to leave MPS.
pub(crate) fn told_to_take(object: &Value) -> (u64, bool) {
    let words = object["spec"]["containers"][0]["args"].as_array().cloned().unwrap_or_default();
    let word = |at: usize| words.get(at).and_then(Value::as_str).unwrap_or_default();
    let leaves_mps = word(0) == "outside";
    (word(1 + usize::from(leaves_mps)).parse().unwrap_or_default(), leaves_mps)
}

/// `TIME stdout F {…}` of a container's log.
fn said_in(line: &str) -> Option<Value> {
    serde_json::from_str(line.splitn(4, ' ').nth(3)?).ok()
}
