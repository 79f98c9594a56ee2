//! ResourceClaims: which devices of one driver are allocated to pods, and how much of them.
//!
//! Invariant: an amount that is not there or cannot be read is never zero, and what cannot be read is named by its
//! field. A claim of which a part cannot be read ends no watch.

use std::time::Duration;

use kube::api::GetParams;
use kube::core::Request;
use kube::{Client, Resource};
use placement::names::limits;
use placement::units::{Cores, MiB, NodeName, PodUid, ResourceClaimUid};
use serde::Deserialize;
use serde_json::Value;

use crate::answer::object;
use crate::call::{CallError, within};
use crate::meta::{Meta, resource};
use crate::quantity::Quantity;
use crate::share_ask::{ShareAsk, is_one_share, share_asks};

/// Devices and configurations that are read of one claim, each. The API server takes 32 devices and 64 configurations.
const MAX_ITEMS: usize = 128;
/// Pods that are read of one claim: the API server takes no more.
const MAX_PODS: usize = 256;
/// Bytes of a request's name: a DNS label, or two with a slash.
const MAX_REQUEST: usize = 2 * limits::LABEL + 1;
/// Bytes of the ID of a share. The API server takes UUIDs.
const MAX_SHARE_ID: usize = limits::UID;
/// Characters of a value that an error repeats.
const MAX_FOUND: usize = 64;

/// The parts of a ResourceClaim that are read here.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ResourceClaim {
    pub(crate) metadata: Meta,
    spec: Value,
    status: Value,
}

resource!(
    ResourceClaim,
    NamespaceResourceScope,
    "resource.k8s.io",
    "ResourceClaim",
    "resourceclaims"
);

/// What a ResourceClaim says of one driver's devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceClaimFacts {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: ResourceClaimUid,
    /// Whether its deletion has begun. It stays until no pod uses it.
    pub deleting: bool,
    /// The pods that may use it.
    pub reserved_for: Vec<PodUid>,
    /// The node that it is allocated for; `None` where it is not allocated, or not for one node.
    pub node: Option<NodeName>,
    /// What is allocated of the driver's devices; `None` where no device of it is.
    pub allocated: Option<Allocated>,
}

/// The devices of one driver that are allocated to a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocated {
    /// The devices, or shares of them.
    pub results: Vec<DeviceResult>,
    /// How the driver is to set them up: those of DeviceClasses first. A watch leaves them out.
    pub configs: Vec<OpaqueConfig>,
}

/// A device, or a share of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceResult {
    /// The claim's request, or `request/subrequest`.
    pub request: String,
    /// The driver's pool.
    pub pool: String,
    /// The device's name in its pool.
    pub device: String,
    /// The ID of the share of a device that several claims may have.
    pub share_id: Option<String>,
    /// The consumed capacity `memory`, rounded up to MiB; `None` where it is not stated.
    pub memory: Option<MiB>,
    /// The consumed capacity `cores`, 0 to 100; `None` where it is not stated.
    pub cores: Option<Cores>,
    /// Whether it is for an administrator, beside the devices' users.
    pub admin_access: bool,
}

/// Parameters for a driver, which it alone can read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpaqueConfig {
    /// Whether a DeviceClass has it, which an administrator makes, and not the claim.
    pub from_class: bool,
    /// The requests that it is for, or `request/subrequest`; none for all.
    pub requests: Vec<String>,
    /// The parameters.
    pub parameters: Value,
}

/// A claim in a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedResourceClaim {
    /// What could be read.
    pub facts: ResourceClaimFacts,
    /// The first field that could not be read, and why: then the claim may hold more than the facts say.
    pub unreadable: Option<String>,
    /// [`ResourceClaim::asks`].
    pub asks: Vec<ShareAsk>,
    /// Whether it asks for one share of any GPU and for nothing else.
    pub is_one_share: bool,
    /// Whether it ends with the one pod that it is reserved for, and that owns it. Any other claim stays allocated
    /// while a successor of that pod, which may come first, uses it.
    pub ends_with_its_pod: bool,
}

/// Why a ResourceClaim cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResourceClaimError {
    /// The API server did not give it.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A field of it cannot be read.
    #[error("{field}: {why}")]
    Field {
        /// The field, as `status.allocation.devices.results[2].consumedCapacity.memory`.
        field: String,
        /// What is wrong with it.
        why: String,
    },
}

/// Reads one claim; `None` if there is none with that name.
///
/// # Errors
///
/// If the API server refuses, or does not answer within `limit`, or a field cannot be read that `driver` needs.
pub async fn get_resource_claim(
    client: &Client,
    namespace: &str,
    name: &str,
    driver: &str,
    limit: Duration,
) -> Result<Option<ResourceClaimFacts>, ResourceClaimError> {
    let claims = Request::new(ResourceClaim::url_path(&(), Some(namespace)));
    let get = object::<ResourceClaim>(client, claims.get(name, &GetParams::default()));
    match within(limit, get).await {
        Ok(claim) => claim.facts(driver).map(Some),
        Err(CallError::NotFound(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl ResourceClaim {
    /// What it says of the devices of `driver`.
    ///
    /// # Errors
    ///
    /// [`ResourceClaimError::Field`].
    pub fn facts(&self, driver: &str) -> Result<ResourceClaimFacts, ResourceClaimError> {
        let mut faults = Faults::default();
        let mut facts = self.read(driver, &mut faults);
        if let Some(allocated) = &mut facts.allocated {
            allocated.configs = self.configs(driver, &mut faults);
        }
        match faults.0 {
            Some(Fault { field, why }) => Err(ResourceClaimError::Field { field, why }),
            None => Ok(facts),
        }
    }

    /// What can be read of it, without configurations. `class` is the driver's DeviceClass.
    pub(crate) fn watched(&self, driver: &str, class: &str) -> WatchedResourceClaim {
        let mut faults = Faults::default();
        let facts = self.read(driver, &mut faults);
        let unreadable = faults.0.map(|Fault { field, why }| format!("{field}: {why}"));
        let asks = self.asks(driver, class);
        let is_one_share = is_one_share(&self.spec, &asks);
        let is_sole_user = items(&self.status, "/reservedFor").count() == 1;
        let mut owners = self.metadata.owners.iter().filter(|owner| owner.kind == "Pod");
        let ends_with_its_pod = is_sole_user
            && owners.any(|owner| facts.reserved_for.iter().any(|pod| pod.as_str() == owner.uid));
        WatchedResourceClaim { facts, unreadable, asks, is_one_share, ends_with_its_pod }
    }

    /// What it asks for of `driver`, whose DeviceClass is `class`; nothing once anything is allocated to it.
    #[must_use]
    pub fn asks(&self, driver: &str, class: &str) -> Vec<ShareAsk> {
        if is_given(&self.status["allocation"]) {
            return Vec::new();
        }
        share_asks(&self.spec, driver, class)
    }

    /// Whether it has or may have a device of `driver`, or asks for one of the DeviceClass `class`.
    pub(crate) fn concerns(&self, driver: &str, class: &str) -> bool {
        let has_class = |request: &Value| request["deviceClassName"] == class;
        let asks = |request: &Value| {
            let first = request["firstAvailable"].as_array();
            has_class(&request["exactly"]) || first.into_iter().flatten().any(has_class)
        };
        !self.metadata.lost.is_empty()
            || items(&self.status, "/allocation/devices/results").any(|it| it["driver"] == driver)
            || items(&self.spec, "/devices/requests").any(asks)
    }

    fn read(&self, driver: &str, faults: &mut Faults) -> ResourceClaimFacts {
        let meta = &self.metadata.object;
        if let Some(field) = self.metadata.lost.first() {
            faults.add(Fault { field: field.clone(), why: "cannot be read".to_owned() });
        }
        let uid = meta.uid.clone().unwrap_or_default();
        if uid.is_empty() {
            faults.add(Fault { field: "metadata.uid".to_owned(), why: "is missing".to_owned() });
        }
        ResourceClaimFacts {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: uid.into(),
            deleting: meta.deletion_timestamp.is_some(),
            reserved_for: self.reserved_for(faults),
            node: self.node(),
            allocated: self.allocated(driver, faults),
        }
    }

    fn reserved_for(&self, faults: &mut Faults) -> Vec<PodUid> {
        let mut pods = Vec::new();
        for user in faults.items(self.status().and_then(|it| it.field("reservedFor")), MAX_PODS) {
            let is_pod = user.value["resource"] == "pods" && !is_given(&user.value["apiGroup"]);
            let uid = user.field("uid").and_then(|uid| uid.text(limits::UID));
            pods.extend(faults.ok(uid).filter(|_| is_pod).map(PodUid::from));
        }
        pods
    }

    /// As kube-scheduler writes it for a device of one node.
    fn node(&self) -> Option<NodeName> {
        let terms =
            self.status.pointer("/allocation/nodeSelector/nodeSelectorTerms")?.as_array()?;
        let [term] = terms.as_slice() else { return None };
        let fields = term["matchFields"].as_array()?;
        let by_name = |field: &&Value| field["key"] == "metadata.name" && field["operator"] == "In";
        let values = fields.iter().find(by_name)?["values"].as_array()?;
        let [Value::String(name)] = values.as_slice() else { return None };
        (name.len() <= limits::NAME).then(|| NodeName::from(name.as_str()))
    }

    fn allocated(&self, driver: &str, faults: &mut Faults) -> Option<Allocated> {
        let mut results = Vec::new();
        for result in faults.items(self.of_devices("results"), MAX_ITEMS) {
            let name = result.field("driver").and_then(|driver| driver.text(limits::NAME));
            if faults.ok(name).is_some_and(|name| name == driver) {
                results.push(result.device_result(faults));
            }
        }
        (!results.is_empty()).then(|| Allocated { results, configs: Vec::new() })
    }

    fn configs(&self, driver: &str, faults: &mut Faults) -> Vec<OpaqueConfig> {
        let mut configs = Vec::new();
        for config in faults.items(self.of_devices("config"), MAX_ITEMS) {
            let Some(opaque) = faults.ok(config.field("opaque")) else { continue };
            if opaque.value["driver"] == driver {
                let from_class = faults.ok(config.is_from_class()).unwrap_or_default();
                let mut requests = Vec::new();
                for request in faults.items(config.field("requests"), MAX_ITEMS) {
                    requests.extend(faults.ok(request.text(MAX_REQUEST)));
                }
                let parameters = opaque.value["parameters"].clone();
                configs.push(OpaqueConfig { from_class, requests, parameters });
            }
        }
        configs
    }

    fn status(&self) -> Result<At<'_>, Fault> {
        Ok(At { path: "status".to_owned(), value: &self.status })
    }

    /// A list of the allocation.
    fn of_devices(&self, list: &str) -> Result<At<'_>, Fault> {
        self.status()?.field("allocation")?.field("devices")?.field(list)
    }
}

fn items<'v>(of: &'v Value, list: &str) -> impl Iterator<Item = &'v Value> {
    of.pointer(list).and_then(Value::as_array).into_iter().flatten()
}

fn is_given(value: &Value) -> bool {
    !value.is_null() && value != ""
}

/// A field that cannot be read, and why.
struct Fault {
    field: String,
    why: String,
}

/// The first fault.
#[derive(Default)]
struct Faults(Option<Fault>);

impl Faults {
    fn add(&mut self, fault: Fault) {
        self.0.get_or_insert(fault);
    }

    fn ok<T>(&mut self, read: Result<T, Fault>) -> Option<T> {
        read.map_err(|fault| self.add(fault)).ok()
    }

    /// The items of a list, `most` of them; none where it is not there.
    fn items<'v>(&mut self, list: Result<At<'v>, Fault>, most: usize) -> Vec<At<'v>> {
        let Some(list) = self.ok(list) else { return Vec::new() };
        let items = match list.value {
            Value::Null => return Vec::new(),
            Value::Array(items) => items,
            _ => {
                self.add(list.expected("a list"));
                return Vec::new();
            }
        };
        if items.len() > most {
            let why = format!("{} entries, of which at most {most} are read", items.len());
            self.add(Fault { field: list.path.clone(), why });
        }
        let at = |(n, value)| At { path: format!("{}[{n}]", list.path), value };
        items.iter().take(most).enumerate().map(at).collect()
    }
}

/// A value of an object, and the path to it.
struct At<'v> {
    path: String,
    value: &'v Value,
}

impl<'v> At<'v> {
    /// A field of an object; null where it or the object is not there.
    fn field(&self, name: &str) -> Result<At<'v>, Fault> {
        let value = match self.value {
            Value::Object(fields) => fields.get(name).unwrap_or(&Value::Null),
            Value::Null => &Value::Null,
            _ => return Err(self.expected("an object")),
        };
        Ok(At { path: format!("{}.{name}", self.path), value })
    }

    fn text(&self, most: usize) -> Result<String, Fault> {
        match self.value {
            Value::String(text) if !text.is_empty() && text.len() <= most => Ok(text.clone()),
            _ => Err(self.expected(&format!("a text of 1 to {most} bytes"))),
        }
    }

    /// Reads what is there.
    fn stated<T>(&self, read: impl Fn(&Self) -> Result<T, Fault>) -> Result<Option<T>, Fault> {
        if self.value.is_null() { Ok(None) } else { read(self).map(Some) }
    }

    fn flag(&self) -> Result<bool, Fault> {
        self.value.as_bool().ok_or_else(|| self.expected("true or false"))
    }

    fn memory(&self) -> Result<MiB, Fault> {
        match self.quantity().bytes() {
            Ok(bytes) => Ok(MiB::holding(bytes)),
            Err(error) => Err(self.because(error.to_string())),
        }
    }

    fn cores(&self) -> Result<Cores, Fault> {
        let percent = self.quantity().count().ok().map(Cores).filter(|cores| *cores <= Cores::ALL);
        percent.ok_or_else(|| self.expected("a whole number from 0 to 100"))
    }

    fn quantity(&self) -> Quantity {
        match self.value {
            Value::String(text) => Quantity::Text(text.clone()),
            Value::Number(number) => Quantity::Number(number.clone()),
            _ => Quantity::Other(serde::de::IgnoredAny),
        }
    }

    fn is_from_class(&self) -> Result<bool, Fault> {
        let source = self.field("source")?;
        match source.value.as_str() {
            Some("FromClass") => Ok(true),
            Some("FromClaim") => Ok(false),
            _ => Err(source.expected("`FromClass` or `FromClaim`")),
        }
    }

    fn device_result(&self, faults: &mut Faults) -> DeviceResult {
        let mut text = |name: &str, most: usize| {
            faults.ok(self.field(name).and_then(|it| it.text(most))).unwrap_or_default()
        };
        let request = text("request", MAX_REQUEST);
        let pool = text("pool", limits::NAME);
        let device = text("device", limits::LABEL);
        let share_id = self.field("shareID").and_then(|id| id.stated(|id| id.text(MAX_SHARE_ID)));
        let consumed = |name: &str| self.field("consumedCapacity")?.field(name);
        let memory = consumed("memory").and_then(|memory| memory.stated(At::memory));
        let cores = consumed("cores").and_then(|cores| cores.stated(At::cores));
        let admin = self.field("adminAccess").and_then(|flag| flag.stated(At::flag));
        DeviceResult {
            request,
            pool,
            device,
            share_id: faults.ok(share_id).flatten(),
            memory: faults.ok(memory).flatten(),
            cores: faults.ok(cores).flatten(),
            admin_access: faults.ok(admin).flatten().unwrap_or_default(),
        }
    }

    fn expected(&self, what: &str) -> Fault {
        let found = match self.value {
            Value::Null => "nothing".to_owned(),
            Value::Array(_) => "a list".to_owned(),
            Value::Object(_) => "an object".to_owned(),
            Value::String(text) => {
                format!("`{}`", text.chars().take(MAX_FOUND).collect::<String>())
            }
            plain => plain.to_string(),
        };
        self.because(format!("expected {what}, found {found}"))
    }

    fn because(&self, why: String) -> Fault {
        Fault { field: self.path.clone(), why }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const DRIVER: &str = "gpu.plimsoll.dev";
    const CLASS: &str = "gpu-share.plimsoll.dev";

    fn claim(object: &Value) -> ResourceClaim {
        serde_json::from_value(object.clone()).unwrap()
    }

    fn share() -> DeviceResult {
        DeviceResult {
            request: "gpu".to_owned(),
            pool: "a".to_owned(),
            device: "gpu-aaaaaaaa-1111-2222-3333-444444444444".to_owned(),
            share_id: Some("c3a1f2de-5b6c-4f7a-8f0e-1d2c3b4a5968".to_owned()),
            memory: Some(MiB(4096)),
            cores: Some(Cores(30)),
            admin_access: false,
        }
    }

    #[test]
    fn a_claim_says_what_is_allocated_of_the_driver_alone() {
        let claim = claim(&sim::stored::resource_claim());
        let facts = claim.facts(DRIVER).unwrap();
        assert_eq!(facts.reserved_for, ["8b1f4a9e-0d4c-4a63-9d6e-2f6a1c0b7e55".into()]);
        assert_eq!(facts.node, Some("a".into()));
        let Allocated { results, configs } = facts.allocated.unwrap();
        assert_eq!(results, [share()]);
        let [config] = configs.as_slice() else { panic!("{configs:?}") };
        assert_eq!(
            (config.from_class, config.requests.as_slice()),
            (false, &["gpu".to_owned()][..])
        );
        assert_eq!(config.parameters["memoryLimit"], "6Gi");
        let nic = claim.facts("nic.example.com").unwrap().allocated.unwrap();
        assert_eq!(
            (nic.results[0].request.as_str(), nic.results[0].admin_access),
            ("nic/fast", true)
        );
        assert_eq!((nic.results[0].memory, nic.results[0].cores), (None, None));
        assert_eq!(nic.configs, []);
        assert_eq!(claim.facts("gpu.nvidia.com").unwrap().allocated, None);
    }

    const RESULT: &str = "/status/allocation/devices/results/0";

    fn changed(place: &str, value: Value) -> Value {
        let mut object = sim::stored::resource_claim();
        *object.pointer_mut(place).unwrap() = value;
        object
    }

    fn refused(place: &str, value: Value) -> String {
        claim(&changed(place, value)).facts(DRIVER).unwrap_err().to_string()
    }

    #[test]
    fn memory_is_rounded_up_and_never_zero_where_it_is_missing() {
        for (text, wanted) in [
            (json!("1"), Some(MiB(1))),
            (json!("4097Ki"), Some(MiB(5))),
            (json!(1 << 20), Some(MiB(1))),
            (json!("0"), Some(MiB(0))),
            (json!("1500m"), Some(MiB(1))),
            (Value::Null, None),
        ] {
            let object = changed(&format!("{RESULT}/consumedCapacity/memory"), text);
            let allocated = claim(&object).facts(DRIVER).unwrap().allocated.unwrap();
            assert_eq!(allocated.results[0].memory, wanted);
        }
    }

    #[test]
    fn what_cannot_be_read_is_named_by_its_field() {
        let of = |field: &str| format!("{RESULT}/{field}");
        let long = "x".repeat(300);
        for (place, value, begins) in [
            (
                of("consumedCapacity/memory"),
                json!("much"),
                "consumedCapacity.memory: expected bytes, as `4Gi`",
            ),
            (
                of("consumedCapacity/memory"),
                json!("-1"),
                "consumedCapacity.memory: expected bytes, as `4Gi`",
            ),
            (
                of("consumedCapacity/cores"),
                json!("101"),
                "consumedCapacity.cores: expected a whole number from 0 to 100, found `101`",
            ),
            (
                of("consumedCapacity/cores"),
                json!("500m"),
                "consumedCapacity.cores: expected a whole number",
            ),
            (
                of("consumedCapacity"),
                json!([]),
                "consumedCapacity: expected an object, found a list",
            ),
            (of("device"), json!(long), "device: expected a text of 1 to 63 bytes, found `xxx"),
            (of("pool"), json!(""), "pool: expected a text of 1 to 253 bytes, found ``"),
            (of("driver"), json!(7), "driver: expected a text of 1 to 253 bytes, found 7"),
            (of("adminAccess"), json!("yes"), "adminAccess: expected true or false, found `yes`"),
        ] {
            let mut object = sim::stored::resource_claim();
            object["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = json!(false);
            *object.pointer_mut(&place).unwrap() = value;
            let error = claim(&object).facts(DRIVER).unwrap_err().to_string();
            let wanted = format!("status.allocation.devices.results[0].{begins}");
            assert!(error.starts_with(&wanted) && error.len() < 300, "{error}");
        }
        assert_eq!(
            refused("/status/allocation/devices/results", json!(vec![json!({"driver": "x"}); 129])),
            "status.allocation.devices.results: 129 entries, of which at most 128 are read"
        );
        assert_eq!(
            refused("/status/allocation/devices/config/0/source", json!("FromNode")),
            "status.allocation.devices.config[0].source: expected `FromClass` or `FromClaim`, found `FromNode`"
        );
        assert_eq!(refused("/metadata/uid", Value::Null), "metadata.uid: is missing");
        assert_eq!(refused("/status", json!(7)), "status: expected an object, found 7");
    }

    #[test]
    fn a_claim_that_is_not_allocated_holds_nothing() {
        let mut object = sim::stored::resource_claim();
        for status in [json!({}), Value::Null, json!({"allocation": null})] {
            object["status"] = status;
            let facts = claim(&object).facts(DRIVER).unwrap();
            assert_eq!((facts.allocated, facts.node, facts.reserved_for), (None, None, vec![]));
            // Its request is for the class.
            assert!(claim(&object).concerns(DRIVER, CLASS));
            assert!(claim(&object).concerns(DRIVER, "nic.example.com"));
            assert!(!claim(&object).concerns(DRIVER, "other"));
        }
    }

    #[test]
    fn only_pods_count_as_users() {
        let users = json!([
            {"resource": "pods", "name": "a", "uid": "1"},
            {"resource": "pods", "apiGroup": "other.example.com", "name": "b", "uid": "2"},
            {"resource": "podgroups", "apiGroup": "scheduling.k8s.io", "name": "c", "uid": "3"},
        ]);
        let facts = claim(&changed("/status/reservedFor", users)).facts(DRIVER).unwrap();
        assert_eq!(facts.reserved_for, ["1".into()]);
    }

    #[test]
    fn a_watched_claim_keeps_what_can_be_read_and_no_parameters() {
        let whole = claim(&sim::stored::resource_claim()).watched(DRIVER, CLASS);
        assert_eq!((whole.unreadable, whole.asks), (None, Vec::new()));
        let allocated = Allocated { results: vec![share()], configs: Vec::new() };
        assert_eq!(whole.facts.allocated, Some(allocated));
        let object = changed(&format!("{RESULT}/consumedCapacity/memory"), json!("much"));
        let broken = claim(&object).watched(DRIVER, CLASS);
        assert!(broken.unreadable.unwrap().contains("results[0].consumedCapacity.memory: "));
        let result = &broken.facts.allocated.unwrap().results[0];
        assert_eq!(*result, DeviceResult { memory: None, ..share() });
        let mut waiting = sim::stored::resource_claim();
        waiting["status"] = json!({});
        let [ask] = &claim(&waiting).watched(DRIVER, CLASS).asks[..] else { panic!("{waiting}") };
        assert_eq!((ask.gpus, ask.memory), (1, Some(MiB(4096))));
    }

    proptest! {
        #[test]
        fn memory_is_read_as_it_is_written(mib in 0_u64..1 << 43, device in "[a-z]{1,63}") {
            let mut object = changed(&format!("{RESULT}/consumedCapacity/memory"), json!(format!("{mib}Mi")));
            object["status"]["allocation"]["devices"]["results"][0]["device"] = json!(device);
            let allocated = claim(&object).facts(DRIVER).unwrap().allocated.unwrap();
            prop_assert_eq!(allocated.results[0].memory, Some(MiB(mib)));
            prop_assert_eq!(&allocated.results[0].device, &device);
        }
    }
}
