//! JSON schemas of what `-o json` prints, generated from the types, and their reference page.

use std::fmt::Write as _;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::{audit, doctor, explain, monitor};
use crate::observe::event_view::EventView;
use crate::observe::inventory::tests::{NOW, contents};
use crate::observe::inventory::{BackendView, ConnectionView, Inventory, Items, ServiceView};
use crate::observe::maintenance::Answer;
use crate::observe::preview::PlanReport;
use crate::observe::rates::{self, Reading, ServiceRates};
use crate::observe::report::Report;
use crate::observe::status::Status;

/// The commands with their schemas. The name of a file is that of the command.
fn schemas() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        ("get-services", "ballast get services", schema::<Items<ServiceView>>()),
        ("get-services-rate", "ballast get services --rate", schema::<Items<ServiceRates>>()),
        ("get-backends", "ballast get backends", schema::<Items<BackendView>>()),
        ("get-drains", "ballast get drains", schema::<Items<BackendView>>()),
        ("get-connections", "ballast get connections", schema::<Items<ConnectionView>>()),
        ("status", "ballast status", schema::<Status>()),
        ("explain", "ballast explain", schema::<explain::Explained>()),
        ("plan", "ballast plan", schema::<PlanReport>()),
        ("audit", "ballast audit", schema::<audit::Audited>()),
        ("doctor", "ballast doctor", schema::<doctor::Examined>()),
        ("maintenance", "ballast maintenance", schema::<Answer>()),
        ("monitor-event", "ballast monitor", schema::<EventView>()),
        ("monitor-lost", "ballast monitor", schema::<monitor::Lost>()),
    ]
}

fn schema<T: JsonSchema>() -> Value {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    generator.into_root_schema_for::<T>().to_value()
}

fn of(name: &str) -> Value {
    schemas().into_iter().find(|(file, ..)| *file == name).expect("a schema").2
}

#[test]
fn the_reference_has_a_schema_of_every_json() {
    let mut page = String::from(
        "# JSON schemas\n\n\
         With these files a program can check what `-o json` prints. They are JSON Schema, draft 2020-12. Fields keep their names and meanings. New\n\
         ones may be added, so a program ignores fields that it does not know. [Command line](../cli.md#json) explains the fields.\n\n\
         | command | schema | of |\n|---|---|---|\n",
    );
    for (name, command, mut schema) in schemas() {
        schema["title"] = json!(format!("{command} -o json"));
        let of = match name {
            "monitor-event" => "a line: an event",
            "monitor-lost" => "a line: events that are not shown",
            _ if name.starts_with("get-") => "the output; with `--watch`, each line",
            _ => "the output",
        };
        // Writing to a string does not fail.
        let _ = writeln!(page, "| `{command} -o json` | [{name}.json](schemas/{name}.json) | {of} |");
        let text = serde_json::to_string_pretty(&schema).expect("plain data") + "\n";
        lb_pages::is_current_file(&format!("docs/src/reference/schemas/{name}.json"), &text);
    }
    lb_pages::is_current("schemas.md", &page);
}

/// The output of a running agent is checked by the rung `reference`.
#[test]
fn outputs_are_as_the_schemas_say() {
    let (before, after) = (contents(), contents());
    let inventory = Inventory::new(&after, NOW);
    let readings = [&before, &after].map(|contents| Reading::new(contents, NOW, true));
    let status = Status { agent: Some(Report::default()), tables: Some(inventory.totals()), ..Status::default() };
    let outputs = [
        ("get-services", json!(Items { items: inventory.services() })),
        ("get-backends", json!(Items { items: inventory.backends() })),
        ("get-drains", json!(Items { items: inventory.drains() })),
        ("get-connections", json!(Items { items: inventory.connections() })),
        ("get-services-rate", json!(Items { items: rates::rates(&readings[0], &readings[1]) })),
        ("status", json!(status)),
        ("maintenance", json!(Answer::default())),
        ("plan", json!(PlanReport::default())),
    ];
    for (name, output) in outputs {
        lb_pages::schema::check(&of(name), &output).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}
