# Notifications of new objects in the bucket. The services also notify each other
# directly, which is faster; these notifications arrive at least once.
locals {
  notified = {
    ledger    = "compactor"
    manifests = "dispatcher"
  }
}

resource "google_pubsub_topic" "objects" {
  for_each = local.notified

  project = var.project
  name    = "${var.prefix}-${each.key}"

  depends_on = [google_project_service.apis]
}

resource "google_pubsub_topic_iam_member" "storage_publishes" {
  for_each = local.notified

  project = var.project
  topic   = google_pubsub_topic.objects[each.key].name
  role    = "roles/pubsub.publisher"
  member  = "serviceAccount:${data.google_storage_project_service_account.this.email_address}"
}

resource "google_storage_notification" "objects" {
  for_each = local.notified

  bucket             = google_storage_bucket.state.name
  topic              = google_pubsub_topic.objects[each.key].id
  payload_format     = "NONE"
  event_types        = ["OBJECT_FINALIZE"]
  object_name_prefix = "${each.key}/"

  depends_on = [google_pubsub_topic_iam_member.storage_publishes]
}

resource "google_pubsub_subscription" "objects" {
  for_each = local.notified

  project              = var.project
  name                 = "${var.prefix}-${each.key}"
  topic                = google_pubsub_topic.objects[each.key].id
  ack_deadline_seconds = 120

  expiration_policy {
    ttl = "" # never
  }

  push_config {
    push_endpoint = "${local.url[each.value]}/v1/notifications"

    oidc_token {
      service_account_email = local.email["pubsub"]
      audience              = local.url[each.value]
    }
  }

  retry_policy {
    minimum_backoff = "1s"
    maximum_backoff = "60s"
  }

  dead_letter_policy {
    dead_letter_topic     = google_pubsub_topic.dead.id
    max_delivery_attempts = 100
  }
}

# Messages that were refused a hundred times are kept for an operator. Work does not depend on
# these messages: the sweeper finds the objects that they announced.
resource "google_pubsub_topic" "dead" {
  project = var.project
  name    = "${var.prefix}-dead-letters"

  depends_on = [google_project_service.apis]
}

resource "google_pubsub_subscription" "dead" {
  project                    = var.project
  name                       = "${var.prefix}-dead-letters"
  topic                      = google_pubsub_topic.dead.id
  message_retention_duration = "604800s"

  expiration_policy {
    ttl = "" # never
  }
}

locals {
  pubsub_agent = "serviceAccount:service-${data.google_project.this.number}@gcp-sa-pubsub.iam.gserviceaccount.com"
}

resource "google_pubsub_topic_iam_member" "dead_letters_arrive" {
  project = var.project
  topic   = google_pubsub_topic.dead.name
  role    = "roles/pubsub.publisher"
  member  = local.pubsub_agent
}

resource "google_pubsub_subscription_iam_member" "dead_letters_leave" {
  for_each = local.notified

  project      = var.project
  subscription = google_pubsub_subscription.objects[each.key].name
  role         = "roles/pubsub.subscriber"
  member       = local.pubsub_agent
}

resource "google_service_account_iam_member" "pubsub_signs" {
  service_account_id = google_service_account.this["pubsub"].name
  role               = "roles/iam.serviceAccountTokenCreator"
  member             = local.pubsub_agent

  depends_on = [google_pubsub_topic.dead] # Pub/Sub creates its agent with the first topic
}
