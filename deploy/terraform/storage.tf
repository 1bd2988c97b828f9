# The bucket of the state. Servo itself deletes objects that it no longer needs. The only
# lifecycle rule removes the parts of aborted uploads.
resource "google_storage_bucket" "state" {
  project                     = var.project
  name                        = var.bucket
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = var.delete_bucket

  # Objects deleted by mistake can be restored for a week: `gcloud storage restore`.
  soft_delete_policy {
    retention_duration_seconds = 7 * 24 * 3600
  }

  lifecycle_rule {
    action {
      type = "AbortIncompleteMultipartUpload"
    }
    condition {
      age = 1
    }
  }

  depends_on = [google_project_service.apis]
}

locals {
  # All services read everything. Only the compactor can write the state. No service can
  # change an entry of the ledger or a file of the archive. The compactor creates wakeups,
  # and the sweeper deletes them. The dispatcher plans the runs of schedules and backfills.
  writes = {
    compactor  = { service = "compactor", role = "roles/storage.objectUser", folders = ["manifests", "state", "hints", "boundary", "pins", "wakeups"] }
    archive    = { service = "compactor", role = "roles/storage.objectCreator", folders = ["archive"] }
    sweeper    = { service = "sweeper", role = "roles/storage.objectUser", folders = ["wakeups"] }
    dispatcher = { service = "dispatcher", role = "roles/storage.objectCreator", folders = ["ledger", "plans"] }
    worker     = { service = "worker", role = "roles/storage.objectUser", folders = ["assets", "logs"] }
  }
}

# Archived entries leave the ledger: the compactor can delete them, but can neither create
# nor replace any.
resource "google_project_iam_custom_role" "archives" {
  project     = var.project
  role_id     = "${replace(var.prefix, "-", "_")}_archives"
  title       = "Servo: deletes what is archived"
  permissions = ["storage.objects.delete"]

  depends_on = [google_project_service.apis]
}

resource "google_storage_bucket_iam_member" "archives" {
  bucket = google_storage_bucket.state.name
  role   = google_project_iam_custom_role.archives.name
  member = "serviceAccount:${local.email["compactor"]}"

  condition {
    title      = "the ledger"
    expression = "resource.name.startsWith(\"projects/_/buckets/${google_storage_bucket.state.name}/objects/ledger/\")"
  }
}

resource "google_storage_bucket_iam_member" "reads" {
  for_each = setunion(local.services, ["worker"])

  bucket = google_storage_bucket.state.name
  role   = "roles/storage.objectViewer"
  member = "serviceAccount:${local.email[each.value]}"
}

resource "google_storage_bucket_iam_member" "looks" {
  for_each = setunion(local.services, ["worker"])

  bucket = google_storage_bucket.state.name
  role   = "roles/storage.bucketViewer"
  member = "serviceAccount:${local.email[each.value]}"
}

resource "google_storage_bucket_iam_member" "writes" {
  for_each = local.writes

  bucket = google_storage_bucket.state.name
  role   = each.value.role
  member = "serviceAccount:${local.email[each.value.service]}"

  condition {
    title = "its own folders"
    expression = join(" || ", [
      for folder in each.value.folders :
      "resource.name.startsWith(\"projects/_/buckets/${google_storage_bucket.state.name}/objects/${folder}/\")"
    ])
  }
}

locals {
  objects = "projects/_/buckets/${google_storage_bucket.state.name}/objects/"

  # The prefixes of a tenant's objects: those that its users only read, and those that they
  # also add to. The names of wakeups begin with the time and contain nothing but a domain's
  # name, so every user may create them.
  tenant_folders = [
    "archive/orchestration", "manifests/orchestration", "state/orchestration", "hints/orchestration", "boundary/orchestration",
    "pins/orchestration", "logs",
  ]
  tenant_adds = ["ledger/orchestration", "plans", "releases", "code", "source", "backfills"]

  # One binding for each user, tenant and right, because a condition of
  # Cloud IAM has at most 12 logical operators.
  grants = merge([
    for member, tenants in var.users : { for tenant in tenants : "${member} ${tenant}" => {
      member = member, tenant = tenant == "*" ? "" : "tenant=${tenant}/", assets = tenant == "*" ? "assets/" : "assets/${tenant}/"
    } }
  ]...)
}

resource "google_storage_bucket_iam_member" "users_read" {
  for_each = local.grants

  bucket = google_storage_bucket.state.name
  role   = "roles/storage.objectViewer"
  member = each.value.member

  condition {
    title = "objects of the tenant"
    expression = join(" || ", concat(
      [for folder in local.tenant_folders : "resource.name.startsWith(\"${local.objects}${folder}/${each.value.tenant}\")"],
      ["resource.name.startsWith(\"${local.objects}${each.value.assets}\")"],
    ))
  }
}

resource "google_storage_bucket_iam_member" "users_list" {
  for_each = local.grants

  bucket = google_storage_bucket.state.name
  role   = "roles/storage.objectViewer"
  member = each.value.member

  condition {
    title = "listings of the tenant, and of marks"
    expression = join(" || ", concat(
      [for folder in local.tenant_folders : "api.getAttribute(\"storage.googleapis.com/objectListPrefix\", \"\").startsWith(\"${folder}/${each.value.tenant}\")"],
      [for folder in [each.value.assets, "wakeups/"] : "api.getAttribute(\"storage.googleapis.com/objectListPrefix\", \"\").startsWith(\"${folder}\")"],
    ))
  }
}

resource "google_storage_bucket_iam_member" "users_read_added" {
  for_each = local.grants

  bucket = google_storage_bucket.state.name
  role   = "roles/storage.objectViewer"
  member = each.value.member

  condition {
    title = "objects and listings of what the tenant adds"
    expression = join(" || ", concat(
      [for folder in local.tenant_adds : "resource.name.startsWith(\"${local.objects}${folder}/${each.value.tenant}\")"],
      [for folder in local.tenant_adds : "api.getAttribute(\"storage.googleapis.com/objectListPrefix\", \"\").startsWith(\"${folder}/${each.value.tenant}\")"],
    ))
  }
}

resource "google_storage_bucket_iam_member" "users_look" {
  for_each = var.users

  bucket = google_storage_bucket.state.name
  role   = "roles/storage.bucketViewer"
  member = each.key
}

resource "google_storage_bucket_iam_member" "users_write" {
  for_each = local.grants

  bucket = google_storage_bucket.state.name
  role   = "roles/storage.objectCreator"
  member = each.value.member

  condition {
    title = "what the tenant adds, and marks of what nobody folds"
    expression = join(" || ", concat(
      [for folder in local.tenant_adds : "resource.name.startsWith(\"${local.objects}${folder}/${each.value.tenant}\")"],
      ["resource.name.startsWith(\"${local.objects}wakeups/\")"],
    ))
  }
}
