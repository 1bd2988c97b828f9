# Servo on Google Cloud: a bucket, queues, three services, workers, and their
# permissions. docs/deploy.md leads from an empty project to a first run.

data "google_project" "this" {
  project_id = var.project
}

data "google_storage_project_service_account" "this" {
  project = var.project
}

resource "google_project_service" "apis" {
  for_each = toset([
    "cloudresourcemanager.googleapis.com", "cloudscheduler.googleapis.com", "cloudtasks.googleapis.com", "iam.googleapis.com",
    "iamcredentials.googleapis.com", "logging.googleapis.com", "monitoring.googleapis.com", "pubsub.googleapis.com", "run.googleapis.com",
    "secretmanager.googleapis.com", "storage.googleapis.com",
  ])

  project            = var.project
  service            = each.value
  disable_on_destroy = false
}

locals {
  services = toset(["compactor", "dispatcher", "sweeper"])

  # A service's URL follows from its name, so that services can refer to each other
  # before they exist.
  url = { for name in local.services : name => "https://${var.prefix}-${name}-${local.host}" }

  # One worker for each worker_queue, by name. Workers without a URL are created here.
  workers     = { for queue, worker in var.workers : queue => worker if worker.url == "" }
  worker_name = { for queue in keys(local.workers) : queue => queue == "default" ? "${var.prefix}-worker" : "${var.prefix}-worker-${queue}" }
  worker_url  = { for queue, worker in var.workers : queue => worker.url == "" ? "https://${local.worker_name[queue]}-${local.host}" : worker.url }

  host = "${data.google_project.this.number}.${var.region}.run.app"

  # Service accounts: of the services, and of their callers.
  accounts = setunion(local.services, ["worker", "pubsub", "queue", "scheduler"])
  email    = { for name in local.accounts : name => google_service_account.this[name].email }
}

resource "google_service_account" "this" {
  for_each = local.accounts

  project      = var.project
  account_id   = "${var.prefix}-${each.value}"
  display_name = "Servo: ${each.value}"

  depends_on = [google_project_service.apis]
}
