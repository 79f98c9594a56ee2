//! `deploy/` agrees with the programs, with Kubernetes and with the documents, and the documents with the code.

// For clippy: functions beside the tests may unwrap and panic too.
#![cfg(test)]

mod admission;
mod autoscalers;
mod certificates;
mod chart;
mod claims;
mod commands;
mod descheduler;
mod documents;
mod events_and_logs;
mod flags;
mod images;
mod links;
mod manifests;
mod monitoring;
mod mps_drain;
mod mps_exclusive;
mod nodes;
mod pod_security;
mod policy;
mod rbac;
mod reference;
mod release;
mod repository;
mod scheduler_config;
mod second_scheduler;
mod site;
mod stand_in_gpus;
mod workloads;
